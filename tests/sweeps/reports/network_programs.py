"""Programs of layers, gradients and optimizers that a device computes as the CPU does."""

from __future__ import annotations

from typing import Any

import torch
from tests.sweeps.reports.device_programs import constant, program, values
from torch import nn
from torch.nn import functional

# -- neural networks


@program
def convolutions(d: str) -> Any:
    x = values(d, 2, 4, 9, 9).requires_grad_()
    weight = values(d, 6, 2, 3, 3).requires_grad_()
    y = functional.conv2d(x, weight, values(d, 6), stride=2, padding=1, groups=2, dilation=2)
    y.square().sum().backward()
    turned = functional.conv_transpose2d(x, values(d, 4, 3, 3, 3), stride=2, output_padding=1)
    last = functional.conv2d(
        x.detach().to(memory_format=torch.channels_last), values(d, 6, 4, 3, 3)
    )
    empty = functional.conv2d(x[:0], weight, groups=2)
    return y, turned, x.grad, weight.grad, last, last.stride(), empty


@program
def pools_and_samples_of_images(d: str) -> Any:
    x = values(d, 2, 3, 8, 8)
    resized = functional.interpolate(x, scale_factor=1.5, mode="bilinear")
    padded = functional.pad(x, (1, 2), mode="reflect")
    return *functional.max_pool2d(x, 2, return_indices=True), resized, padded, x.unfold(2, 2, 2)


@program
def a_batch_norm_trains(d: str) -> Any:
    norm = nn.BatchNorm2d(3).to(d)
    y = norm(values(d, 4, 3, 5, 5))
    y.square().sum().backward()
    norm.eval()
    return y, norm.running_mean, norm.running_var, norm.num_batches_tracked, norm.weight.grad


@program
def a_batch_norm_of_strided_statistics(d: str) -> Any:
    mean, variance = torch.zeros(6, device=d)[::2], torch.ones(6, device=d)[::2]
    y = functional.batch_norm(values(d, 4, 3, 5), mean, variance, training=True)
    return y, mean, variance


@program
def attention_by_mask_and_in_groups(d: str) -> Any:
    q = values(d, 2, 4, 6, 8)
    attend = functional.scaled_dot_product_attention
    mask = torch.ones(6, 6, device=d).tril().bool()
    fewer = q[:, :2]
    masked, grouped = attend(q, q, q, attn_mask=mask), attend(q, fewer, fewer, enable_gqa=True)
    return masked, attend(q, q, q, is_causal=True), grouped


@program
def a_multihead_attention_with_padding(d: str) -> Any:
    module = constant(nn.MultiheadAttention(8, 2, batch_first=True), d).eval()
    x, padding = values(d, 2, 5, 8), torch.zeros(2, 5, dtype=torch.bool, device=d)
    padding[:, 3:] = True
    with torch.no_grad():
        return module(x, x, x, key_padding_mask=padding)


@program
def a_packed_sequence_through_a_recurrence(d: str) -> Any:
    module = constant(nn.GRU(3, 4, 2, bidirectional=True), d)
    packed = nn.utils.rnn.pack_padded_sequence(values(d, 5, 3, 3), torch.tensor([5, 3, 2]))
    result, state = module(packed)
    result.data.sum().backward()
    return result.data, state, module.weight_ih_l0.grad


@program
def ctc_with_gradients(d: str) -> Any:
    x = values(d, 10, 2, 5).log_softmax(-1).detach().requires_grad_()
    targets = torch.tensor([[1, 2, 3], [2, 2, 4]], device=d)
    loss = functional.ctc_loss(x, targets, torch.tensor([10, 9]), torch.tensor([3, 3]))
    loss.backward()
    return loss, x.grad


@program
def hooks_of_modules_and_tensors(d: str) -> Any:
    module, seen = constant(nn.Linear(3, 3), d), []
    module.register_forward_hook(lambda _module, _inputs, result: result * 2)
    module.register_full_backward_hook(lambda _module, given, _result: (given[0] * 3,))
    module.weight.register_post_accumulate_grad_hook(lambda p: seen.append(tuple(p.grad.shape)))
    x = values(d, 2, 3).requires_grad_()
    x.register_hook(lambda gradient: gradient + 1)
    module(x).sum().backward()
    return x.grad, module.weight.grad, seen


@program
def parametrized_weights(d: str) -> Any:
    module = nn.utils.parametrizations.weight_norm(nn.Linear(3, 3))
    module = constant(module, d)
    y = module(values(d, 2, 3))
    y.sum().backward()
    return y, module.parametrizations.weight.original0.grad


# -- gradients and optimizers


@program
def writes_to_views_have_gradients(d: str) -> Any:
    x = values(d, 4, 4).requires_grad_()
    y = x * 1
    y[:, 1] *= 2
    y.t()[0].add_(y[:, 2])
    y.diagonal().zero_()
    for i in range(2):
        y[i, 3] = y[i, 0] * 3
    y.square().sum().backward()
    return y, x.grad


@program
def what_a_gradient_needs_was_written(d: str) -> Any:
    x = values(d, 3).requires_grad_()
    y = x.exp()
    y.add_(1)
    y.sum().backward()


@program
def a_leaf_is_not_written(d: str) -> Any:
    return values(d, 3).requires_grad_().add_(1)


@program
def gradients_of_gradients(d: str) -> Any:
    x = values(d, 3).requires_grad_()
    (first,) = torch.autograd.grad((x**3).sum(), x, create_graph=True)
    first.sum().backward()
    return first, x.grad


@program
def function_transforms(d: str) -> Any:
    w, x = values(d, 3, 2), values(d, 5, 3)

    def loss(w: Any, x: Any) -> Any:
        return torch.tanh(x @ w).sum()

    each = torch.func.vmap(torch.func.grad(loss), (None, 0))(w, x.unsqueeze(1))
    forward = torch.func.jvp(lambda v: v.sin(), (x,), (x,))
    return (
        torch.func.grad(loss)(w, x),
        each,
        forward,
        torch.func.hessian(lambda v: (v**3).sum())(x[0]),
    )


@program
def tensors_saved_on_the_host(d: str) -> Any:
    with torch.autograd.graph.save_on_cpu():
        x = values(d, 3).requires_grad_()
        y = (x.exp() * x).sum()
    y.backward()
    return x.grad


@program
def eleven_optimizers(d: str) -> Any:
    optim = torch.optim
    kinds: list[tuple[Any, dict[str, Any]]] = [
        (optim.SGD, {"momentum": 0.9, "nesterov": True}),
        (optim.SGD, {"fused": True}),
        (optim.Adam, {"amsgrad": True}),
        (optim.Adam, {"fused": True}),
        (optim.AdamW, {"foreach": True}),
        (optim.RMSprop, {}),
        (optim.Adagrad, {}),
        (optim.Adadelta, {}),
        (optim.NAdam, {}),
        (optim.LBFGS, {}),
        (optim.Adafactor, {}),
    ]
    trained = []
    for kind, options in kinds:
        wide = nn.Parameter(values(d, 6, 4).t())  # not contiguous
        optimizer = kind([wide], lr=0.1, **options)

        def loss(optimizer: Any = optimizer, wide: Any = wide) -> Any:
            optimizer.zero_grad()
            result = (wide**2).sum()
            result.backward()
            return result

        for _ in range(3):
            optimizer.step(loss)
        trained.append(wide)
    return trained


@program
def lists_of_tensors(d: str) -> Any:
    x = [values(d, 3), values(d, 2, 2)]
    torch._foreach_add_(x, 1.0)
    y = torch._foreach_mul(x, [2.0, 3.0])
    torch._foreach_addcdiv_(x, y, y, value=0.5)
    return *x, *y, *torch._foreach_norm(x)


@program
def a_clipped_gradient(d: str) -> Any:
    p = nn.Parameter(values(d, 4))
    (p * 100).sum().backward()
    return nn.utils.clip_grad_norm_([p], 1.0), p.grad
