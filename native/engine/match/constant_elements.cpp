// Reading and comparing the elements of constants.
#include <cmath>
#include <cstring>
#include <unordered_map>

#include "engine/graph/text.h"
#include "engine/match/predicates.h"

namespace bringup::engine {
namespace {

enum class Format { kBool, kU8, kU16, kU32, kU64, kI8, kI16, kI32, kI64, kF16, kBF16, kF32, kF64 };

std::optional<Format> format_of(StringId dtype) {
  static const std::unordered_map<StringId, Format> known = [] {
    std::unordered_map<StringId, Format> made;
    const std::pair<const char*, Format> all[] = {
        {"bool", Format::kBool},   {"uint8", Format::kU8},      {"int8", Format::kI8},
        {"uint16", Format::kU16},  {"uint32", Format::kU32},    {"uint64", Format::kU64},
        {"int16", Format::kI16},   {"int32", Format::kI32},     {"int64", Format::kI64},
        {"float16", Format::kF16}, {"bfloat16", Format::kBF16}, {"float32", Format::kF32},
        {"float64", Format::kF64},
    };
    for (const auto& [name, format] : all) made[Strings::intern(name)] = format;
    return made;
  }();
  const auto found = known.find(dtype);
  return found == known.end() ? std::nullopt : std::optional(found->second);
}

size_t width(Format format) {
  switch (format) {
    case Format::kBool:
    case Format::kU8:
    case Format::kI8:
      return 1;
    case Format::kI16:
    case Format::kU16:
    case Format::kF16:
    case Format::kBF16:
      return 2;
    case Format::kI32:
    case Format::kU32:
    case Format::kF32:
      return 4;
    default:
      return 8;
  }
}

template <class T>
T read(const std::byte* from) {
  T value;
  std::memcpy(&value, from, sizeof value);
  return value;
}

float float_of_bits(uint32_t bits) { return std::bit_cast<float>(bits); }

float half_value(uint16_t half) {
  const uint32_t sign = uint32_t{half & 0x8000u} << 16;
  const uint32_t exponent = (half >> 10) & 0x1f;
  const uint32_t fraction = half & 0x3ff;
  if (exponent == 0x1f) return float_of_bits(sign | 0x7f800000u | fraction << 13);
  if (exponent != 0) return float_of_bits(sign | (exponent + 112) << 23 | fraction << 13);
  const float tiny = std::ldexp(static_cast<float>(fraction), -24);
  return sign != 0 ? -tiny : tiny;
}

// The nearest half of a float, as a float; ties to even.
double round_to_half(float number) {
  if (std::isnan(number) || std::isinf(number)) return number;
  const float size = std::fabs(number);
  int exponent = 0;
  std::frexp(size, &exponent);
  const int step = std::max(exponent - 11, -24);
  const double rounded = std::ldexp(std::nearbyint(std::ldexp(double{size}, -step)), step);
  const double kept = rounded > 65504.0 ? INFINITY : rounded;
  return std::copysign(kept, double{number});
}

double round_to_bfloat(float number) {
  if (!std::isfinite(number)) return number;
  uint32_t bits = std::bit_cast<uint32_t>(number);
  bits = (bits + 0x7fff + (bits >> 16 & 1)) & 0xffff0000u;
  return float_of_bits(bits);
}

// A number as an element of this format; halves are rounded from float32.
double rounded(double number, Format format) {
  const auto single = [&] { return static_cast<float>(number); };
  if (format == Format::kF32) return single();
  if (format == Format::kF16) return round_to_half(single());
  if (format == Format::kBF16 && std::isfinite(number)) return round_to_bfloat(single());
  return number;
}

// Whether an element is a number from 2^63 up, which no number of a pattern is.
bool is_beyond(const std::byte* data, Format format) {
  return format == Format::kU64 && read<int64_t>(data) < 0;
}

bool is_whole(Format format) { return format <= Format::kI64; }

int64_t whole_at(const std::byte* data, Format format) {
  switch (format) {
    case Format::kBool:
      return read<uint8_t>(data) != 0;
    case Format::kU8:
      return read<uint8_t>(data);
    case Format::kU16:
      return read<uint16_t>(data);
    case Format::kU32:
      return read<uint32_t>(data);
    case Format::kI8:
      return read<int8_t>(data);
    case Format::kI16:
      return read<int16_t>(data);
    case Format::kI32:
      return read<int32_t>(data);
    default:
      return read<int64_t>(data);
  }
}

double real_at(const std::byte* data, Format format) {
  switch (format) {
    case Format::kF16:
      return half_value(read<uint16_t>(data));
    case Format::kBF16:
      return float_of_bits(uint32_t{read<uint16_t>(data)} << 16);
    case Format::kF32:
      return read<float>(data);
    case Format::kF64:
      return read<double>(data);
    default:
      return static_cast<double>(whole_at(data, format));
  }
}

}  // namespace

std::optional<size_t> first_difference(const ConstantArgument& wanted, const ConstantData& found,
                                       bool& readable) {
  const std::optional<Format> format = format_of(found.dtype);
  readable = format.has_value();
  if (!readable) return 0;
  const size_t count = found.bytes.size() / width(*format);
  const bool one = !wanted.sizes.has_value();
  for (size_t i = 0; i < count && (one || i < wanted.values.size()); ++i) {
    const auto& value = wanted.values[one ? 0 : i];
    const std::byte* data = found.bytes.data() + i * width(*format);
    const bool fits = is_whole(*format) ? wanted.fits(value, {true, whole_at(data, *format), 0})
                                        : wanted.fits({false, 0, rounded(value.as_real(), *format)},
                                                      {false, 0, real_at(data, *format)});
    if (!fits || is_beyond(data, *format)) return i;
  }
  return std::nullopt;
}

std::string element_text(const ConstantData& data, size_t index) {
  const std::optional<Format> format = format_of(data.dtype);
  if (!format) return "?";
  const std::byte* start = data.bytes.data() + index * width(*format);
  if (*format == Format::kBool) return whole_at(start, *format) != 0 ? "True" : "False";
  if (is_beyond(start, *format)) return std::to_string(read<uint64_t>(start));
  if (is_whole(*format)) return std::to_string(whole_at(start, *format));
  return float_text(real_at(start, *format));
}

}  // namespace bringup::engine
