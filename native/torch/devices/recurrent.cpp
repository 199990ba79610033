// The fused cells of LSTM and GRU. torch sends every PrivateUse1 device to them, and has them for
// GPUs only, so they get kernels for the CPU, which the fallback finds. Their workspace is for
// their own backward alone.
#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/zeros_like.h>
#include <torch/library.h>

#include <tuple>
#include <vector>

#include "torch/devices/state.h"

namespace bringup::torch_ext {
namespace {

using at::Tensor;
using MaybeTensor = std::optional<Tensor>;

bool is_given(const MaybeTensor& tensor) { return tensor.has_value() && tensor->defined(); }

Tensor with_bias(const Tensor& gates, const MaybeTensor& bias) {
  return is_given(bias) ? gates + *bias : gates;
}

Tensor or_zeros(const MaybeTensor& tensor, const Tensor& like) {
  return is_given(tensor) ? *tensor : at::zeros_like(like);
}

Tensor sigmoid_slope(const Tensor& y) { return y * (1 - y); }
Tensor tanh_slope(const Tensor& y) { return 1 - y * y; }

std::tuple<Tensor, Tensor, Tensor> lstm_cell(const Tensor& input_gates, const Tensor& hidden_gates,
                                             const Tensor& cx, const MaybeTensor& input_bias,
                                             const MaybeTensor& hidden_bias) {
  const std::vector<Tensor> gates =
      (with_bias(input_gates, input_bias) + with_bias(hidden_gates, hidden_bias)).chunk(4, 1);
  const Tensor in = gates[0].sigmoid();
  const Tensor forget = gates[1].sigmoid();
  const Tensor cell = gates[2].tanh();
  const Tensor out = gates[3].sigmoid();
  const Tensor cy = forget * cx + in * cell;
  return {out * cy.tanh(), cy, at::cat({in, forget, cell, out}, 1)};
}

std::tuple<Tensor, Tensor, Tensor> lstm_cell_backward(const MaybeTensor& grad_hy,
                                                      const MaybeTensor& grad_cy, const Tensor& cx,
                                                      const Tensor& cy, const Tensor& workspace,
                                                      bool has_bias) {
  if (!is_given(grad_hy) && !is_given(grad_cy)) return {};
  const std::vector<Tensor> gates = workspace.chunk(4, 1);
  const Tensor &in = gates[0], &forget = gates[1], &cell = gates[2], &out = gates[3];
  const Tensor dhy = or_zeros(grad_hy, cx);
  const Tensor tanh_cy = cy.tanh();
  const Tensor dcy = or_zeros(grad_cy, cx) + dhy * out * tanh_slope(tanh_cy);
  const Tensor dgates = at::cat({dcy * cell * sigmoid_slope(in), dcy * cx * sigmoid_slope(forget),
                                 dcy * in * tanh_slope(cell), dhy * tanh_cy * sigmoid_slope(out)},
                                1);
  return {dgates, dcy * forget, has_bias ? dgates.sum(0) : Tensor()};
}

std::tuple<Tensor, Tensor> gru_cell(const Tensor& input_gates, const Tensor& hidden_gates,
                                    const Tensor& hx, const MaybeTensor& input_bias,
                                    const MaybeTensor& hidden_bias) {
  const std::vector<Tensor> of_input = with_bias(input_gates, input_bias).chunk(3, 1);
  const std::vector<Tensor> of_hidden = with_bias(hidden_gates, hidden_bias).chunk(3, 1);
  const Tensor reset = (of_input[0] + of_hidden[0]).sigmoid();
  const Tensor update = (of_input[1] + of_hidden[1]).sigmoid();
  const Tensor fresh = (of_input[2] + reset * of_hidden[2]).tanh();
  return {fresh + update * (hx - fresh), at::cat({reset, update, fresh, hx, of_hidden[2]}, 1)};
}

std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor> gru_cell_backward(const Tensor& grad_hy,
                                                                     const Tensor& workspace,
                                                                     bool has_bias) {
  const std::vector<Tensor> parts = workspace.chunk(5, 1);
  const Tensor &reset = parts[0], &update = parts[1], &fresh = parts[2], &hx = parts[3];
  const Tensor dfresh = grad_hy * (1 - update) * tanh_slope(fresh);
  const Tensor dupdate = grad_hy * (hx - fresh) * sigmoid_slope(update);
  const Tensor dreset = dfresh * parts[4] * sigmoid_slope(reset);
  const Tensor dinput = at::cat({dreset, dupdate, dfresh}, 1);
  const Tensor dhidden = at::cat({dreset, dupdate, dfresh * reset}, 1);
  return {dinput, dhidden, grad_hy * update, has_bias ? dinput.sum(0) : Tensor(),
          has_bias ? dhidden.sum(0) : Tensor()};
}

}  // namespace

void register_recurrent_cells() {
  static auto* library =
      new torch::Library(torch::Library::IMPL, "aten", c10::DispatchKey::CPU, __FILE__, __LINE__);
  library->impl("_thnn_fused_lstm_cell", &lstm_cell);
  library->impl("_thnn_fused_lstm_cell_backward_impl", &lstm_cell_backward);
  library->impl("_thnn_fused_gru_cell", &gru_cell);
  library->impl("_thnn_fused_gru_cell_backward", &gru_cell_backward);
}

}  // namespace bringup::torch_ext
