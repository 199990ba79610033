// A small matrix product over panels: what packed_linear and attention share.
//
// The right-hand side [k, n] lies in panels of 16 columns, [ceil(n / 16), k, 16], so that a product
// streams it from front to back whatever n is. A tile is up to 6 rows by a group of panels, held in
// registers over all of k (Goto, van de Geijn: Anatomy of High-Performance Matrix Multiplication,
// 2008).
#pragma once

#include "vec.h"

namespace bringup_kernels {

constexpr int64_t kPanel = 16;
constexpr int64_t kTileRows = 6;

template <class T>
constexpr int kPanelVectors = static_cast<int>(kPanel) / kLanes<T>;

// Panels per tile: as many as leave registers for the right-hand side and one broadcast value.
template <class T>
constexpr int kTilePanels = kVectorRegisters == 32 && kPanelVectors<T> == 1 ? 4 : 1;

// The matrices of one product out[m, n] = a[m, k] * panels + bias, n a multiple of 16. bias is null
// or n values.
template <class T>
struct PanelProduct {
  const T* a;
  int64_t a_stride;
  const T* panels;
  const T* bias;
  T* out;
  int64_t out_stride;
  int64_t k;
};

template <class T, int kRows, int kPanels>
inline void product_tile(const PanelProduct<T>& product, int64_t row, int64_t panel) {
  constexpr int kVectors = kPanels * kPanelVectors<T>;
  const int64_t panel_size = product.k * kPanel;
  const T* a = product.a + row * product.a_stride;
  const T* b = product.panels + panel * panel_size;
  Vec<T> tile[kRows][kVectors];
  for (int v = 0; v < kVectors; ++v) {
    const Vec<T> start =
        product.bias ? load(product.bias + panel * kPanel + v * kLanes<T>) : Vec<T>{};
    for (int r = 0; r < kRows; ++r) tile[r][v] = start;
  }
  for (int64_t i = 0; i < product.k; ++i) {
    Vec<T> right[kVectors];
    for (int p = 0; p < kPanels; ++p) {
      for (int v = 0; v < kPanelVectors<T>; ++v) {
        right[p * kPanelVectors<T> + v] = load(b + p * panel_size + i * kPanel + v * kLanes<T>);
      }
    }
    for (int r = 0; r < kRows; ++r) {
      const T left = a[r * product.a_stride + i];
      for (int v = 0; v < kVectors; ++v) tile[r][v] = multiply_add(left, right[v], tile[r][v]);
    }
  }
  for (int r = 0; r < kRows; ++r) {
    T* out = product.out + (row + r) * product.out_stride + panel * kPanel;
    for (int v = 0; v < kVectors; ++v) store(out + v * kLanes<T>, tile[r][v]);
  }
}

template <class T, int kPanels>
inline void product_rows(const PanelProduct<T>& product, int64_t row, int64_t rows, int64_t panel) {
  switch (rows) {
    case 6:
      return product_tile<T, 6, kPanels>(product, row, panel);
    case 5:
      return product_tile<T, 5, kPanels>(product, row, panel);
    case 4:
      return product_tile<T, 4, kPanels>(product, row, panel);
    case 3:
      return product_tile<T, 3, kPanels>(product, row, panel);
    case 2:
      return product_tile<T, 2, kPanels>(product, row, panel);
    default:
      return product_tile<T, 1, kPanels>(product, row, panel);
  }
}

// Rows [begin, end) by panels from `first`, kPanels at a time while there are as many; returns the
// first panel that is left.
template <class T, int kPanels>
inline int64_t panel_groups(const PanelProduct<T>& product, int64_t begin, int64_t end,
                            int64_t first, int64_t last) {
  const int64_t tiles = (end - begin + kTileRows - 1) / kTileRows;
  int64_t panel = first;
  for (; panel + kPanels <= last; panel += kPanels) {
    for (int64_t tile = 0; tile < tiles; ++tile) {  // even tiles: 8 rows are 4 + 4, not 6 + 2
      const int64_t row = begin + (end - begin) * tile / tiles;
      product_rows<T, kPanels>(product, row, begin + (end - begin) * (tile + 1) / tiles - row,
                               panel);
    }
  }
  return panel;
}

// Rows [begin, end) by panels [first, last) of the product.
template <class T>
inline void panel_product(const PanelProduct<T>& product, int64_t begin, int64_t end, int64_t first,
                          int64_t last) {
  int64_t panel = panel_groups<T, kTilePanels<T>>(product, begin, end, first, last);
  if constexpr (kTilePanels<T> > 2) panel = panel_groups<T, 2>(product, begin, end, panel, last);
  if constexpr (kTilePanels<T> > 1) panel_groups<T, 1>(product, begin, end, panel, last);
}

}  // namespace bringup_kernels
