// z = x + y in half precision: each block adds its part, tile by tile, through queues of two
// buffers. An ordinary kernel of the basic vector API: it compiles with the vendor's toolkit as it
// is.
#include "kernel_operator.h"

constexpr int32_t kBuffers = 2;   // of each queue: one is filled while the other is used
constexpr uint32_t kTile = 1024;  // elements

class AddKernel {
 public:
  __aicore__ inline AddKernel() {}

  __aicore__ inline void Init(GM_ADDR x, GM_ADDR y, GM_ADDR z, uint32_t length) {
    const uint32_t tiles = length / kTile;
    const uint32_t blocks = AscendC::GetBlockNum();
    const uint32_t block = AscendC::GetBlockIdx();
    first_ = tiles * block / blocks;
    last_ = tiles * (block + 1) / blocks;
    x_.SetGlobalBuffer((__gm__ half*)x, length);
    y_.SetGlobalBuffer((__gm__ half*)y, length);
    z_.SetGlobalBuffer((__gm__ half*)z, length);
    pipe_.InitBuffer(in_x_, kBuffers, kTile * sizeof(half));
    pipe_.InitBuffer(in_y_, kBuffers, kTile * sizeof(half));
    pipe_.InitBuffer(out_z_, kBuffers, kTile * sizeof(half));
  }

  __aicore__ inline void Process() {
    for (uint32_t tile = first_; tile < last_; ++tile) {
      CopyIn(tile);
      Compute();
      CopyOut(tile);
    }
  }

 private:
  __aicore__ inline void CopyIn(uint32_t tile) {
    AscendC::LocalTensor<half> x = in_x_.AllocTensor<half>();
    AscendC::LocalTensor<half> y = in_y_.AllocTensor<half>();
    AscendC::DataCopy(x, x_[tile * kTile], kTile);
    AscendC::DataCopy(y, y_[tile * kTile], kTile);
    in_x_.EnQue(x);
    in_y_.EnQue(y);
  }

  __aicore__ inline void Compute() {
    AscendC::LocalTensor<half> x = in_x_.DeQue<half>();
    AscendC::LocalTensor<half> y = in_y_.DeQue<half>();
    AscendC::LocalTensor<half> z = out_z_.AllocTensor<half>();
    AscendC::Add(z, x, y, kTile);
    out_z_.EnQue<half>(z);
    in_x_.FreeTensor(x);
    in_y_.FreeTensor(y);
  }

  __aicore__ inline void CopyOut(uint32_t tile) {
    AscendC::LocalTensor<half> z = out_z_.DeQue<half>();
    AscendC::DataCopy(z_[tile * kTile], z, kTile);
    out_z_.FreeTensor(z);
  }

  AscendC::TPipe pipe_;
  AscendC::TQue<AscendC::TPosition::VECIN, kBuffers> in_x_, in_y_;
  AscendC::TQue<AscendC::TPosition::VECOUT, kBuffers> out_z_;
  AscendC::GlobalTensor<half> x_, y_, z_;
  uint32_t first_, last_;
};

extern "C" __global__ __aicore__ void add_custom(GM_ADDR x, GM_ADDR y, GM_ADDR z, uint32_t length) {
  AddKernel kernel;
  kernel.Init(x, y, z, length);
  kernel.Process();
}
