// C++ sugar over kernel.h: typed views, dtype names, parallel_for. Included by kernel.h; needs no other header.
#ifndef BRINGUP_KERNEL_VIEWS_H_
#define BRINGUP_KERNEL_VIEWS_H_

#include "bringup/kernel.h"

#define BRINGUP_EXPORT extern "C" __attribute__((visibility("default")))

#endif  // BRINGUP_KERNEL_VIEWS_H_
