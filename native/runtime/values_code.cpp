#include "runtime/values_code.h"

#include <numeric>
#include <stdexcept>
#include <utility>

namespace bringup::runtime {
namespace {

using Kind = CParameter::Kind;

constexpr uint32_t kBlockThreads = 64;  // of a block that the kit divides work items into, at most

bool is_fault(const CParameter& parameter) {
  return parameter.value.program.front().opcode == Opcode::kFault;
}

bringup_value plain(const CParameter& parameter, Value value) {
  bringup_value made{};
  switch (parameter.kind) {
    case Kind::kPointer:
      made.kind = BRINGUP_VALUE_ADDRESS;
      made.size = sizeof(void*);
      made.value.address = const_cast<void*>(value.pointer);
      break;
    case Kind::kFloat64:
      made.kind = BRINGUP_VALUE_FLOAT;
      made.size = sizeof(double);
      made.value.number = value.floating;
      break;
    case Kind::kFloat32:
      made.kind = BRINGUP_VALUE_FLOAT;
      made.size = sizeof(float);
      made.value.single = static_cast<float>(value.floating);
      break;
    default:
      made.kind = BRINGUP_VALUE_INT;
      made.size = parameter.bytes;
      made.value.integer = value.integer;
  }
  return made;
}

bool whole_clusters(const ValuesLaunch& launch) {
  const bringup_dim3 &grid = launch.grid, &cluster = launch.cluster;
  return cluster.x == 0 ||
         (grid.x % cluster.x == 0 && grid.y % cluster.y == 0 && grid.z % cluster.z == 0);
}

std::string text_of(const bringup_dim3& size) {
  return std::to_string(size.x) + " x " + std::to_string(size.y) + " x " + std::to_string(size.z);
}

}  // namespace

bringup_launch_values_args ValuesLaunch::arguments(bringup_kernel_fn fn, const char* name) const {
  bringup_launch_values_args made{};
  made.struct_size = sizeof made;
  made.nvalues = static_cast<int32_t>(values.size());
  made.values = values.data();
  made.fn = fn;
  made.grid = grid;
  made.block = block;
  made.shared_bytes = shared_bytes;
  made.work_items = work_items;
  made.cluster = cluster;
  made.flags = flags;
  made.name = name;
  return made;
}

ValuesCode::ValuesCode(Private, std::vector<CParameter> parameters, std::vector<std::string> names,
                       LaunchSize size)
    : parameters_(std::move(parameters)), names_(std::move(names)), size_(std::move(size)) {
  const std::array all = {&size_.grid[0],  &size_.grid[1],  &size_.grid[2], &size_.block[0],
                          &size_.block[1], &size_.block[2], &size_.shared};
  for (size_t i = 0; i < all.size(); ++i) {
    const Instruction& first = all[i]->program.front();
    const bool fixed = all[i]->program.size() == 1 && first.opcode == Opcode::kConstant &&
                       first.value > 0 && first.value <= int64_t{UINT32_MAX};
    const char* grid = size_.free_blocks ? "the work items" : "the grid";
    counts_[i] = {all[i], i < 6 ? 1 : 0, fixed ? static_cast<uint32_t>(first.value) : 0,
                  i < 3   ? grid
                  : i < 6 ? "the block"
                          : "the shared memory"};
  }
  for (const CParameter& parameter : parameters_) {
    if (is_fault(parameter)) rules_ = parameter.value.texts;
  }
}

std::shared_ptr<const ValuesCode> ValuesCode::make(std::vector<CParameter> parameters,
                                                   std::vector<std::string> names,
                                                   LaunchSize size) {
  for (const CParameter& parameter : parameters) {
    check_program(parameter.value);
    const bool is_plain = parameter.kind == Kind::kInt || parameter.kind == Kind::kPointer ||
                          parameter.kind == Kind::kFloat64 || parameter.kind == Kind::kFloat32;
    if (parameter.by_reference || !is_plain) {
      throw std::runtime_error(parameter.value.text + " is no plain value");
    }
  }
  for (const auto* sizes : {&size.grid, &size.block}) {
    for (const Expression& expression : *sizes) check_program(expression);
  }
  check_program(size.shared);
  return std::make_shared<const ValuesCode>(Private{}, std::move(parameters), std::move(names),
                                            std::move(size));
}

const char* ValuesCode::read(const Count& count, void* const* args, const bringup_ctx* ctx,
                             uint32_t& number) const {
  number = count.fixed;
  if (number != 0) return nullptr;
  const char* reason = nullptr;
  const int64_t read = read_expression(*count.expression, names_, args, ctx, false, reason).integer;
  if (reason != nullptr) return reason;
  if (read < count.lowest || read > int64_t{UINT32_MAX}) {
    return refuse(std::string(count.what) + " '" + count.expression->text + "' must be from " +
                  std::to_string(count.lowest) + " to " + std::to_string(UINT32_MAX) + ", got " +
                  std::to_string(read));
  }
  number = static_cast<uint32_t>(read);
  return nullptr;
}

const char* ValuesCode::lower(void* const* args, const bringup_ctx* ctx,
                              ValuesLaunch& launch) const {
  const char* reason = nullptr;
  const std::array numbers = {&launch.grid.x,      &launch.grid.y,  &launch.grid.z,
                              &launch.block.x,     &launch.block.y, &launch.block.z,
                              &launch.shared_bytes};
  for (size_t i = 0; i < numbers.size() && reason == nullptr; ++i) {
    reason = read(counts_[i], args, ctx, *numbers[i]);
  }
  if (size_.free_blocks && reason == nullptr) {
    launch.work_items = launch.grid;
    launch.block.x = std::gcd(launch.grid.x, kBlockThreads);
    launch.grid.x /= launch.block.x;
  }
  launch.cluster = size_.cluster;
  launch.flags = size_.flags;
  if (reason == nullptr && !whole_clusters(launch)) {
    reason = refuse("the grid of " + text_of(launch.grid) +
                    " blocks must be of whole clusters of " + text_of(launch.cluster));
  }
  launch.values.clear();
  launch.values.reserve(parameters_.size());
  for (const CParameter& parameter : parameters_) {
    if (reason != nullptr) break;
    launch.values.push_back(
        plain(parameter, read_parameter(parameter, names_, args, ctx, false, reason)));
    if (is_fault(parameter)) launch.values.back().value.address = launch.fault;
  }
  return reason;
}

int64_t ValuesCode::blocks(void* const* args, const bringup_ctx* ctx) const {
  const char* reason = nullptr;
  const int64_t read = read_expression(size_.grid[0], names_, args, ctx, false, reason).integer;
  return reason == nullptr ? read : 1;
}

}  // namespace bringup::runtime
