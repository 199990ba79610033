// An AscendC-shaped header for the host: what an ordinary kernel of the basic vector API includes,
// so that it runs on the simulated NPU block by block, on a computer without the vendor's toolkit.
//
// Covered: GlobalTensor, LocalTensor, TPipe, TQue, TQueBind, TBuf, DataCopy, DataCopyPad, the
// element by element arithmetic of vector.h, GetBlockIdx and GetBlockNum. Everything runs at once
// and in the order written, so barriers and flags have nothing to do. What the hardware would get
// wrong quietly is refused with words: unaligned copies, ranges outside a tensor, a full queue, too
// much on-chip memory.
//
// Not covered: the cube unit, masks and repeats, several cores at the same time. With the vendor's
// toolkit a file is compiled against the vendor's header of this name, and this one is not looked
// at.
#ifndef BRINGUP_ASCENDC_KERNEL_OPERATOR_H_
#define BRINGUP_ASCENDC_KERNEL_OPERATOR_H_

#include "bringup/ascendc/core.h"
#include "bringup/ascendc/data_copy.h"
#include "bringup/ascendc/queue.h"
#include "bringup/ascendc/tensor.h"
#include "bringup/ascendc/vector.h"

#endif  // BRINGUP_ASCENDC_KERNEL_OPERATOR_H_
