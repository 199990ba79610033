// The launch block: every kind of argument, and addresses that stay.
#include <array>
#include <cstring>
#include <stdexcept>
#include <string>
#include <vector>

#include "bringup/driver.h"
#include "check.h"
#include "runtime/launch_block.h"

namespace rt = bringup::runtime;

namespace {

template <class T>
T* argument(rt::LaunchBlock& block, int32_t index) {
  return static_cast<T*>(block.args()[index]);
}

rt::TensorDesc described(void* data, const std::vector<int64_t>& sizes,
                         const std::vector<int64_t>& strides) {
  return {data, {12, 1}, {4, 16, 1}, sizes, strides};
}

// One argument of each kind, from memory that is gone when this returns.
rt::LaunchBlock one_of_each(void* data) {
  rt::LaunchBlock block;
  const std::vector<int64_t> sizes{2, 3}, strides{3, 1}, ints{4, 5, 6}, none;
  const std::vector<double> floats{0.5, 1.5};
  block.add_tensor(described(data, sizes, strides));
  block.add_int(-7);
  block.add_float(2.25);
  block.add_string(std::string("a text that is longer than any small buffer would hold"));
  block.add_none();
  block.add_int_list(ints);
  block.add_float_list(floats);
  const std::array<std::optional<rt::TensorDesc>, 3> tensors{
      described(data, sizes, strides), described(nullptr, none, none), std::nullopt};
  block.add_tensor_list(tensors);
  return block;
}

void check_one_of_each(rt::LaunchBlock& block, void* data) {
  REQUIRE(block.size() == 8);
  const auto* tensor = argument<DLTensor>(block, 0);
  CHECK_EQ(tensor->data, data);
  CHECK_EQ(tensor->device.device_type, 12);
  CHECK_EQ(tensor->device.device_id, 1);
  CHECK_EQ(static_cast<int>(tensor->dtype.code), 4);
  CHECK_EQ(static_cast<int>(tensor->dtype.bits), 16);
  CHECK_EQ(tensor->ndim, 2);
  CHECK_EQ(tensor->byte_offset, 0u);
  CHECK_EQ(tensor->shape[0] * 10 + tensor->shape[1], 23);
  CHECK_EQ(tensor->strides[0] * 10 + tensor->strides[1], 31);
  CHECK_EQ(*argument<int64_t>(block, 1), -7);
  CHECK_EQ(*argument<double>(block, 2), 2.25);
  CHECK_EQ(std::string(argument<char>(block, 3)),
           "a text that is longer than any small buffer would hold");
  CHECK(block.args()[4] == nullptr);
  const auto* ints = argument<bringup_list>(block, 5);
  CHECK_EQ(ints->size, 3);
  CHECK_EQ(static_cast<const int64_t*>(ints->data)[2], 6);
  const auto* floats = argument<bringup_list>(block, 6);
  CHECK_EQ(floats->size, 2);
  CHECK_EQ(static_cast<const double*>(floats->data)[1], 1.5);
  const auto* tensors = argument<bringup_list>(block, 7);
  REQUIRE(tensors->size == 3);
  const auto* const* elements = static_cast<const DLTensor* const*>(tensors->data);
  CHECK_EQ(elements[0]->strides[0], 3);
  CHECK_EQ(elements[1]->ndim, 0);
  CHECK(elements[1]->strides != nullptr);  // the ABI says: never NULL
  CHECK(elements[2] == nullptr);
}

TEST(every_kind_of_argument_is_copied) {
  int data = 0;
  rt::LaunchBlock block = one_of_each(&data);
  check_one_of_each(block, &data);
}

TEST(kinds_are_those_of_the_driver) {
  rt::LaunchBlock block = one_of_each(nullptr);
  const std::vector<int> kinds(block.kinds(), block.kinds() + block.size());
  const std::vector<int> expected{
      BRINGUP_ARG_TENSOR, BRINGUP_ARG_INT,      BRINGUP_ARG_FLOAT,      BRINGUP_ARG_STRING,
      BRINGUP_ARG_NONE,   BRINGUP_ARG_INT_LIST, BRINGUP_ARG_FLOAT_LIST, BRINGUP_ARG_TENSOR_LIST};
  CHECK(kinds == expected);
  CHECK_EQ(static_cast<int>(block.kinds()[0]), static_cast<int>(BRINGUP_ARG_TENSOR));
}

TEST(addresses_stay_when_arguments_are_added_and_the_block_moves) {
  rt::LaunchBlock block;
  std::vector<void*> addresses;
  const std::vector<int64_t> sizes(5, 1), strides(5, 1);
  for (int64_t i = 0; i < 200; ++i) {
    if (i % 2 == 0) {
      block.add_int(i);
    } else {
      block.add_tensor(described(nullptr, sizes, strides));
    }
    addresses.push_back(block.args()[i]);
  }
  rt::LaunchBlock moved = std::move(block);
  for (int32_t i = 0; i < 200; ++i) CHECK_EQ(moved.args()[i], addresses[i]);
  CHECK_EQ(*argument<int64_t>(moved, 198), 198);
  CHECK_EQ(argument<DLTensor>(moved, 199)->ndim, 5);
}

TEST(an_argument_larger_than_a_chunk_is_kept) {
  std::vector<int64_t> many(10000);
  for (size_t i = 0; i < many.size(); ++i) many[i] = static_cast<int64_t>(i);
  rt::LaunchBlock block;
  block.add_int(1);
  block.add_int_list(many);
  block.add_int(2);
  const auto* list = argument<bringup_list>(block, 1);
  CHECK_EQ(std::memcmp(list->data, many.data(), many.size() * 8), 0);
  CHECK_EQ(*argument<int64_t>(block, 2), 2);
}

TEST(sizes_without_strides_are_refused_and_add_nothing) {
  rt::LaunchBlock block;
  CHECK_THROWS(block.add_tensor(described(nullptr, {1, 2}, {1})), std::invalid_argument,
               "a tensor of rank 2 needs as many strides, got 1");
  CHECK_EQ(block.size(), 0);
}

TEST(empty_lists_and_empty_blocks_work) {
  rt::LaunchBlock block;
  CHECK_EQ(block.size(), 0);
  CHECK(block.args() != nullptr);
  block.add_int_list({});
  block.add_tensor_list({});
  block.add_string("");
  CHECK_EQ(argument<bringup_list>(block, 0)->size, 0);
  CHECK_EQ(argument<bringup_list>(block, 1)->size, 0);
  CHECK_EQ(std::string(argument<char>(block, 2)), "");
}

}  // namespace
