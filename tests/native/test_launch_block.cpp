// The launch block: every kind of argument, addresses that stay, updates in place, deep copies.
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
  const std::array<rt::TensorDesc, 2> tensors{described(data, sizes, strides),
                                              described(nullptr, none, none)};
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
  REQUIRE(tensors->size == 2);
  const auto* const* elements = static_cast<const DLTensor* const*>(tensors->data);
  CHECK_EQ(elements[0]->strides[0], 3);
  CHECK_EQ(elements[1]->ndim, 0);
  CHECK(elements[1]->strides != nullptr);  // the ABI says: never NULL
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
  CHECK(block.kind(0) == rt::ArgKind::kTensor);
  CHECK_THROWS(block.kind(8), std::invalid_argument, "no argument 8 in a launch block of 8");
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

TEST(values_change_in_place) {
  rt::LaunchBlock block = one_of_each(nullptr);
  void* list_before = block.args()[5];
  block.set_int(1, 70);
  block.set_float(2, -1.0);
  block.set_int_list(5, std::vector<int64_t>{1});
  block.set_float_list(6, std::vector<double>{});
  CHECK_EQ(*argument<int64_t>(block, 1), 70);
  CHECK_EQ(*argument<double>(block, 2), -1.0);
  CHECK_EQ(argument<bringup_list>(block, 5)->size, 1);
  CHECK_EQ(argument<bringup_list>(block, 6)->size, 0);
  for (int64_t length = 1; length < 500; ++length) {
    const std::vector<int64_t> values(static_cast<size_t>(length), length);
    block.set_int_list(5, values);
  }
  CHECK_EQ(block.args()[5], list_before);
  CHECK_EQ(argument<bringup_list>(block, 5)->size, 499);
  CHECK_EQ(static_cast<const int64_t*>(argument<bringup_list>(block, 5)->data)[498], 499);
}

TEST(a_list_may_be_set_from_itself) {
  rt::LaunchBlock block;
  block.add_int_list(std::vector<int64_t>{1, 2, 3});
  const auto* list = argument<bringup_list>(block, 0);
  block.set_int_list(0, {static_cast<const int64_t*>(list->data) + 1, 2});
  CHECK_EQ(static_cast<const int64_t*>(list->data)[0], 2);
  CHECK_EQ(static_cast<const int64_t*>(list->data)[1], 3);
}

TEST(a_wrong_kind_or_index_is_refused_and_changes_nothing) {
  rt::LaunchBlock block = one_of_each(nullptr);
  CHECK_THROWS(block.set_int(2, 1), std::invalid_argument,
               "argument 2 of a launch block is a float, not an int");
  CHECK_THROWS(block.set_float_list(5, {}), std::invalid_argument, "is an int[], not a float[]");
  CHECK_THROWS(block.set_int(8, 1), std::invalid_argument, "no argument 8");
  CHECK_THROWS(block.set_int(-1, 1), std::invalid_argument, "no argument -1");
  check_one_of_each(block, nullptr);
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
  block.set_int_list(0, std::vector<int64_t>{9});
  CHECK_EQ(*static_cast<const int64_t*>(argument<bringup_list>(block, 0)->data), 9);
}

TEST(a_clone_is_deep) {
  int data = 0;
  rt::LaunchBlock block = one_of_each(&data);
  rt::LaunchBlock copy = block.clone();
  block.set_int(1, 0);
  block.set_int_list(5, std::vector<int64_t>{0, 0, 0});
  argument<DLTensor>(block, 0)->shape[0] = 99;
  check_one_of_each(copy, &data);
}

TEST(a_clone_outlives_its_original_and_sees_changes_made_through_pointers) {
  int first = 0, second = 0;
  rt::LaunchBlock copy;
  {
    rt::LaunchBlock block = one_of_each(&first);
    argument<DLTensor>(block, 0)->data = &second;
    copy = block.clone();
  }
  CHECK_EQ(argument<DLTensor>(copy, 0)->data, static_cast<void*>(&second));
}

}  // namespace
