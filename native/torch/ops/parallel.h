// What a kernel's ctx->parallel_for runs on: libtorch's threads.
#pragma once

namespace bringup::torch_ext {

// Gives libtorch's intra-op threads to the kernels of this process. torch.set_num_threads() holds
// for them too. A forked child runs serially: the threads of an OpenMP pool do not come along.
void install_parallel_for();

}  // namespace bringup::torch_ext
