"""Functions that are compiled for a device: windows, norms, losses."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F  # noqa: N812 - torch's own name for it
from tests.compiled_functions import Row, _i, _image, _matrix, _two, _x

WINDOWS = [
    Row("max_pool_stride", lambda x: F.max_pool2d(x, 3, 2, 1), _image, True),
    Row("max_pool_dilation", lambda x: F.max_pool2d(x, 2, 1, 0, 2), _image, True),
    Row("max_pool_indices", lambda x: F.max_pool2d(x, 2, return_indices=True), _image),
    Row("max_pool_ceil", lambda x: F.max_pool2d(x, 2, ceil_mode=True), _image, True),
    Row("max_pool1d", lambda x: F.max_pool1d(x, 3), lambda: (_x(2, 3, 20),), True),
    Row("max_pool3d", lambda x: F.max_pool3d(x, 2), lambda: (_x(1, 2, 4, 4, 4),)),
    Row(
        "avg_pool_stride", lambda x: F.avg_pool2d(x, 3, 2, 1, count_include_pad=False), _image, True
    ),
    Row("avg_pool_ceil", lambda x: F.avg_pool2d(x, 2, ceil_mode=True), _image, True),
    Row("avg_pool1d", lambda x: F.avg_pool1d(x, 3), lambda: (_x(2, 3, 20),), True),
    Row("avg_pool3d", lambda x: F.avg_pool3d(x, 2), lambda: (_x(1, 2, 4, 4, 4),)),
    Row("lp_pool", lambda x: F.lp_pool2d(x.abs() + 1, 2, 2), _image, True),
    Row("adaptive_max_pool", lambda x: F.adaptive_max_pool2d(x, (2, 3)), _image),
    Row("adaptive_to_one", lambda x: F.adaptive_avg_pool2d(x, 1), _image, True),
    Row("fold_unfold", lambda x: F.unfold(x, 3, padding=1) * 2, _image, True),
    Row("fold", lambda x: F.fold(x, (5, 6), 2), lambda: (_x(2, 12, 20),)),
    Row(
        "upsample_nearest_exact",
        lambda x: F.interpolate(x, (5, 20), mode="nearest-exact"),
        _image,
        True,
    ),
    Row("upsample_bicubic", lambda x: F.interpolate(x, (12, 7), mode="bicubic"), _image, True),
    Row(
        "upsample_corners",
        lambda x: F.interpolate(x, (12, 7), mode="bilinear", align_corners=True),
        _image,
        True,
    ),
    Row(
        "upsample_linear",
        lambda x: F.interpolate(x, 33, mode="linear"),
        lambda: (_x(2, 3, 20),),
        True,
    ),
    Row(
        "upsample_trilinear",
        lambda x: F.interpolate(x, (5, 3, 6), mode="trilinear"),
        lambda: (_x(1, 2, 4, 4, 4),),
    ),
    Row("upsample_area", lambda x: F.interpolate(x, (4, 5), mode="area"), _image, True),
    Row(
        "upsample_half",
        lambda x: F.interpolate(x, scale_factor=2.0),
        lambda: (_x(1, 2, 5, 4, dtype=torch.float16),),
    ),
    Row(
        "grid_sample",
        lambda x, g: F.grid_sample(x, g.tanh(), align_corners=False),
        lambda: (_x(2, 3, 9, 11), _x(2, 4, 5, 2)),
    ),
    Row(
        "affine_grid",
        lambda t: F.affine_grid(t, (2, 3, 4, 5), align_corners=False) + 1,
        lambda: (_x(2, 2, 3),),
    ),
    Row("local_response_norm", lambda x: F.local_response_norm(x, 2), _image, True),
]
NORMS_AND_LOSSES = [
    Row("instance_norm", lambda x: F.instance_norm(x), _image, True, 2e-5),
    Row(
        "group_norm_affine",
        lambda x, w, b: F.group_norm(x, 3, w, b),
        lambda: (_x(2, 6, 5, 4), _x(6), _x(6)),
        True,
        2e-5,
    ),
    Row("layer_norm_two", lambda x: F.layer_norm(x, (5, 4)), lambda: (_x(3, 5, 4),), True, 2e-5),
    Row(
        "layer_norm_half",
        lambda x, w: F.layer_norm(x, (65,), w),
        lambda: (_x(9, 65, dtype=torch.bfloat16), _x(65, dtype=torch.bfloat16)),
        True,
        3e-2,
    ),
    Row("layer_norm_long", lambda x: F.layer_norm(x, (5000,)), lambda: (_x(3, 5000),), True, 2e-5),
    Row(
        "batch_norm_inference",
        lambda x, m, v: F.batch_norm(x, m.detach(), v.detach().abs() + 1),
        lambda: (_x(4, 3, 5), _x(3), _x(3)),
        True,
    ),
    Row(
        "batch_norm_image",
        lambda x, w, b: F.batch_norm(x, None, None, w, b, True),
        lambda: (_x(4, 3, 5, 6), _x(3), _x(3)),
        True,
        2e-5,
    ),
    Row(
        "rms_norm_by_hand",
        lambda x: x * (x.square().mean(-1, keepdim=True) + 1e-6).rsqrt(),
        _matrix,
        True,
    ),
    Row("normalize", lambda x: F.normalize(x, dim=-1), _matrix, True),
    Row("norms", lambda x: (x.norm(1), x.norm(math.inf), x.norm(3, 0), x.norm(0)), _matrix),
    Row("cosine_similarity", F.cosine_similarity, _two, True),
    Row("pairwise_distance", F.pairwise_distance, _two, True),
    Row(
        "cdist_by_hand",
        lambda x, y: (x[:, None] - y[None]).square().sum(-1).sqrt(),
        lambda: (_x(7, 5), _x(9, 5)),
        True,
    ),
    Row("l1_loss", F.l1_loss, _two, True),
    Row("smooth_l1_loss", F.smooth_l1_loss, _two, True),
    Row("huber_loss", F.huber_loss, _two, True),
    Row(
        "kl_div",
        lambda x, y: F.kl_div(x.log_softmax(-1), y.softmax(-1), reduction="batchmean"),
        _two,
        True,
    ),
    Row("bce", lambda x, y: F.binary_cross_entropy(x.sigmoid(), y.sigmoid()), _two, True),
    Row("bce_logits", lambda x, y: F.binary_cross_entropy_with_logits(x, y.sigmoid()), _two, True),
    Row(
        "nll_loss",
        lambda x, t: F.nll_loss(x.log_softmax(-1), t),
        lambda: (_x(9, 5), _i(5, 9)),
        True,
    ),
    Row(
        "nll_ignored",
        lambda x, t: F.nll_loss(x.log_softmax(-1), t, ignore_index=2),
        lambda: (_x(9, 5), _i(5, 9)),
        True,
    ),
    Row(
        "cross_entropy_weighted",
        lambda x, t, w: F.cross_entropy(x, t, w.detach().abs() + 1, label_smoothing=0.1),
        lambda: (_x(9, 5), _i(5, 9), _x(5)),
        True,
    ),
    Row("cross_entropy_image", F.cross_entropy, lambda: (_x(2, 5, 3, 4), _i(5, 2, 3, 4)), True),
    Row(
        "cross_entropy_none",
        lambda x, t: F.cross_entropy(x, t, reduction="none"),
        lambda: (_x(9, 5), _i(5, 9)),
        True,
    ),
    Row("cross_entropy_probabilities", lambda x, y: F.cross_entropy(x, y.softmax(-1)), _two, True),
    Row("gaussian_nll", lambda x, y: F.gaussian_nll_loss(x, y, 1.5, full=True), _two, True),
    Row("poisson_nll", F.poisson_nll_loss, _two, True),
    Row("soft_margin", lambda x, y: F.soft_margin_loss(x, y.detach().sign()), _two, True),
    Row("margin_ranking", lambda x, y: F.margin_ranking_loss(x, y, x.sign(), margin=0.2), _two),
    Row("triplet", lambda x, y: F.triplet_margin_loss(x, y, x * y), _two, True),
    Row("cosine_embedding", lambda x, y: F.cosine_embedding_loss(x, y, x[:, 0].sign()), _two),
    Row(
        "multilabel_soft_margin",
        lambda x, y: F.multilabel_soft_margin_loss(x, (y > 0).float()),
        _two,
        True,
    ),
    Row("glu", F.glu, lambda: (_x(9, 8),), True),
    Row("softmin", lambda x: F.softmin(x, -1), _matrix, True),
    Row("prelu", lambda x, w: F.prelu(x, w), lambda: (_x(3, 5), _x(5)), True),
    Row("rrelu_inference", lambda x: F.rrelu(x), _matrix),
    Row("dropout_inference", lambda x: F.dropout(x, 0.5, training=False) + 1, _matrix, True),
]
