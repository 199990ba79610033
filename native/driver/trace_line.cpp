#include "driver/trace_line.h"

#include <cmath>
#include <cstdio>
#include <cstring>

namespace bringup::driver {
namespace {

// Texts of a driver need not end.
template <size_t kSize>
std::string_view text_of(const char (&text)[kSize]) {
  return {text, strnlen(text, kSize)};
}

void put_tensor(TraceLine& line, const DLTensor& tensor) {
  line.field("data", tensor.data);
  line.open("device", '[');
  line.element(tensor.device.device_type);
  line.element(tensor.device.device_id);
  line.close(']');
  line.open("dtype", '[');
  line.element(tensor.dtype.code);
  line.element(tensor.dtype.bits);
  line.element(tensor.dtype.lanes);
  line.close(']');
  const auto numbers = [&](const char* name, const int64_t* values) {
    if (values == nullptr) return;
    line.open(name, '[');
    for (int32_t i = 0; i < tensor.ndim; ++i) line.element(values[i]);
    line.close(']');
  };
  numbers("shape", tensor.shape);
  numbers("strides", tensor.strides);
  line.field("byte_offset", tensor.byte_offset);
}

template <class T>
void put_list(TraceLine& line, const char* name, const bringup_list& list) {
  line.open(name, '[');
  for (int64_t i = 0; i < list.size; ++i) line.element(static_cast<const T*>(list.data)[i]);
  line.close(']');
}

void put_argument(TraceLine& line, const void* value, uint8_t kind) {
  line.open('{');
  const auto& list = *static_cast<const bringup_list*>(value);
  if (value == nullptr || kind == BRINGUP_ARG_NONE) {
    line.field("none", true);
  } else if (kind == BRINGUP_ARG_TENSOR) {
    line.open("tensor", '{');
    put_tensor(line, *static_cast<const DLTensor*>(value));
    line.close('}');
  } else if (kind == BRINGUP_ARG_INT) {
    line.field("int", *static_cast<const int64_t*>(value));
  } else if (kind == BRINGUP_ARG_FLOAT) {
    line.field("float", *static_cast<const double*>(value));
  } else if (kind == BRINGUP_ARG_STRING) {
    line.field("string", static_cast<const char*>(value));
  } else if (kind == BRINGUP_ARG_INT_LIST) {
    put_list<int64_t>(line, "ints", list);
  } else if (kind == BRINGUP_ARG_FLOAT_LIST) {
    put_list<double>(line, "floats", list);
  } else if (kind == BRINGUP_ARG_TENSOR_LIST) {
    line.open("tensors", '[');
    for (int64_t i = 0; i < list.size; ++i) {
      const DLTensor* tensor = static_cast<const DLTensor* const*>(list.data)[i];
      line.open('{');
      if (tensor != nullptr) put_tensor(line, *tensor);
      line.close('}');
    }
    line.close(']');
  } else {
    line.field("unknown", kind);
  }
  line.close('}');
}

void put_dim(TraceLine& line, const char* name, const bringup_dim3& dim) {
  line.open(name, '[');
  line.element(dim.x);
  line.element(dim.y);
  line.element(dim.z);
  line.close(']');
}

}  // namespace

std::string hex_of(const void* bytes, size_t size) {
  constexpr char kDigits[] = "0123456789abcdef";
  std::string text;
  text.reserve(2 * size);
  for (size_t i = 0; i < size; ++i) {
    const unsigned char byte = static_cast<const unsigned char*>(bytes)[i];
    text += kDigits[byte >> 4];
    text += kDigits[byte & 15];
  }
  return text;
}

// Bytes that are no ASCII are written as the character of that number, so that every line is valid
// whatever a driver says.
void TraceLine::put(std::string_view text) {
  text_ += '"';
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (c == '"' || c == '\\') {
      text_ += '\\';
      text_ += c;
    } else if (byte < 0x20 || byte >= 0x7f) {
      char escaped[8];
      std::snprintf(escaped, sizeof escaped, "\\u%04x", byte);
      text_ += escaped;
    } else {
      text_ += c;
    }
  }
  text_ += '"';
}

// What JSON has no numbers for becomes text, which Python's float() reads.
void TraceLine::put(double number) {
  char text[40];
  if (std::isfinite(number)) {
    std::snprintf(text, sizeof text, "%.17g", number);
    text_ += text;
  } else {
    put(std::string_view(std::isnan(number) ? "nan" : number > 0 ? "inf" : "-inf"));
  }
}

void TraceLine::put_address(uintptr_t address) {
  char text[32];
  std::snprintf(text, sizeof text, "\"0x%llx\"", static_cast<unsigned long long>(address));
  text_ += text;
}

void put_fields(TraceLine& line, const bringup_device_props& props) {
  line.field("name", text_of(props.name));
  line.field("arch", text_of(props.arch));
  line.field("total_memory", props.total_memory);
  line.field("core_count", props.core_count);
  line.field("supports_float64", props.supports_float64);
  line.field("supports_int64", props.supports_int64);
  line.field("host_visible_memory", props.host_visible_memory);
  line.field("runs_host_code", props.runs_host_code);
  line.field("dtypes", props.dtypes);
  line.field("alignment", props.alignment);
  line.field("driver_version", text_of(props.driver_version));
  line.field("max_allocation", props.max_allocation);
  line.field("max_cluster", props.max_cluster);
  line.field("values_flags", props.values_flags);
}

void put_fields(TraceLine& line, const bringup_error_detail& detail) {
  line.field("code", detail.code);
  line.field("device", detail.device);
  line.field("stream", detail.stream);
  line.field("kernel", text_of(detail.kernel));
  line.field("text", text_of(detail.text));
}

void put_fields(TraceLine& line, const bringup_pointer_info& info) {
  line.field("kind", info.kind);
  line.field("device", info.device);
  line.field("base", info.base);
  line.field("bytes", info.bytes);
}

void put_fields(TraceLine& line, const bringup_launch& launch) {
  line.field("name", launch.name);
  line.field("fn", launch.fn);
  line.field("grid", launch.grid);
  line.field("work_items", launch.work_items);
  line.open("args", '[');
  for (int32_t i = 0; i < launch.nargs; ++i) put_argument(line, launch.args[i], launch.kinds[i]);
  line.close(']');
}

void put_fields(TraceLine& line, const bringup_launch_values_args& launch) {
  line.field("name", launch.name);
  line.field("fn", launch.fn);
  put_dim(line, "grid", launch.grid);
  put_dim(line, "block", launch.block);
  line.field("shared_bytes", launch.shared_bytes);
  put_dim(line, "work_items", launch.work_items);
  put_dim(line, "cluster", launch.cluster);
  line.field("flags", launch.flags);
  line.open("values", '[');
  for (int32_t i = 0; i < launch.nvalues; ++i) {
    const bringup_value& value = launch.values[i];
    line.open('{');
    line.field("kind", value.kind);
    line.field("size", value.size);
    if (value.kind == BRINGUP_VALUE_ADDRESS) {
      line.field("address", value.value.address);
    } else {
      line.field("bytes", hex_of(value.value.bytes, sizeof value.value.bytes));
    }
    line.close('}');
  }
  line.close(']');
}

}  // namespace bringup::driver
