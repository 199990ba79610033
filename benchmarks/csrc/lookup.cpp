// From the properties of a call to its binary, on a hit: our packed key and table, and the scheme
// of torch_catlass written anew (string maps of typed parameters, macros, a sorted text, SHA-256, a
// map under a mutex). Built by benchmarks/lookup.py; each function gives nanoseconds a lookup.
#include <time.h>

#include <array>
#include <cstdio>
#include <cstring>
#include <map>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "runtime/variant_table.cpp"

namespace {

using bringup::runtime::Key128;
using bringup::runtime::KeyPacker;
using bringup::runtime::VariantTable;

// Of this thread alone: what other programs do on the machine is not counted.
double now_ns() {
  timespec now;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return 1e9 * static_cast<double>(now.tv_sec) + static_cast<double>(now.tv_nsec);
}

// Keeps `value` from being optimised away.
void use(const void* value) { asm volatile("" : : "g"(value) : "memory"); }

// What chooses the binary of one call of a matrix product.
struct Call {
  uint32_t op;
  uint8_t dtypes[3];
  uint8_t layouts[2];
  uint8_t epilogue;
  bool big;
};

Call call_number(uint32_t i) {
  const auto byte = [i](int shift, uint32_t count) {
    return static_cast<uint8_t>((i >> shift) % count);
  };
  return {i % 66,
          {byte(0, 10), byte(1, 10), byte(2, 10)},
          {byte(3, 4), byte(4, 4)},
          byte(5, 4),
          i % 2 == 1};
}

// --- ours

Key128 pack(const Call& call) {
  KeyPacker packer;
  packer.put(1, 8);
  packer.put(call.op, 24);
  packer.put(0, 8);
  for (const uint8_t dtype : call.dtypes) packer.put(dtype, 7);
  for (const uint8_t layout : call.layouts) packer.put(layout, 2);
  packer.put(call.epilogue, 2);
  packer.put(call.big, 1);
  return packer.key();
}

double ours(uint32_t kernels, uint32_t lookups, uint32_t threads) {
  VariantTable table;
  static const char binary = 0;
  std::vector<Call> calls;
  for (uint32_t i = 0; i < kernels; ++i) {
    calls.push_back(call_number(i));
    table.insert(pack(calls.back()), &binary);
  }
  const auto work = [&] {
    for (uint32_t i = 0, k = 0; i < lookups; ++i) {
      use(table.find(pack(calls[k])));
      k = k + 1 == kernels ? 0 : k + 1;
    }
  };
  std::vector<std::thread> others;
  for (uint32_t i = 1; i < threads; ++i) others.emplace_back(work);
  const double start = now_ns();
  work();
  const double spent = now_ns() - start;
  for (std::thread& other : others) other.join();
  return spent / lookups;
}

// --- SHA-256 (FIPS 180-4), one block at a time

constexpr std::array<uint32_t, 64> kRound = {
    0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5,
    0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174,
    0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
    0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967,
    0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
    0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070,
    0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
    0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2};

uint32_t rotate(uint32_t x, int n) { return x >> n | x << (32 - n); }

void compress(std::array<uint32_t, 8>& state, const unsigned char* block) {
  std::array<uint32_t, 64> w;
  for (int i = 0; i < 16; ++i) {
    w[i] = uint32_t{block[4 * i]} << 24 | uint32_t{block[4 * i + 1]} << 16 |
           uint32_t{block[4 * i + 2]} << 8 | block[4 * i + 3];
  }
  for (int i = 16; i < 64; ++i) {
    const uint32_t a = rotate(w[i - 15], 7) ^ rotate(w[i - 15], 18) ^ w[i - 15] >> 3;
    const uint32_t b = rotate(w[i - 2], 17) ^ rotate(w[i - 2], 19) ^ w[i - 2] >> 10;
    w[i] = w[i - 16] + a + w[i - 7] + b;
  }
  auto [a, b, c, d, e, f, g, h] = state;
  for (int i = 0; i < 64; ++i) {
    const uint32_t s1 = rotate(e, 6) ^ rotate(e, 11) ^ rotate(e, 25);
    const uint32_t t1 = h + s1 + ((e & f) ^ (~e & g)) + kRound[i] + w[i];
    const uint32_t s0 = rotate(a, 2) ^ rotate(a, 13) ^ rotate(a, 22);
    const uint32_t t2 = s0 + ((a & b) ^ (a & c) ^ (b & c));
    h = g, g = f, f = e, e = d + t1, d = c, c = b, b = a, a = t1 + t2;
  }
  const std::array<uint32_t, 8> mixed = {a, b, c, d, e, f, g, h};
  for (int i = 0; i < 8; ++i) state[i] += mixed[i];
}

std::string sha256_hex(std::string text) {
  std::array<uint32_t, 8> state = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a,
                                   0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};
  const uint64_t bits = 8 * text.size();
  text += '\x80';
  while (text.size() % 64 != 56) text += '\0';
  for (int shift = 56; shift >= 0; shift -= 8) text += static_cast<char>(bits >> shift);
  for (size_t i = 0; i < text.size(); i += 64) {
    compress(state, reinterpret_cast<const unsigned char*>(text.data()) + i);
  }
  std::string hex;
  for (const uint32_t word : state) {
    char digits[9];
    std::snprintf(digits, sizeof digits, "%08x", word);
    hex += digits;
  }
  return hex;
}

// --- the peer's scheme

const char* const kTypes[] = {"float",   "half",    "bfloat16_t", "int8_t",  "int32_t",
                              "uint8_t", "int64_t", "double",     "int16_t", "uint32_t"};
const char* const kLayouts[] = {"Catlass::layout::RowMajor", "Catlass::layout::ColumnMajor",
                                "Catlass::layout::zN", "Catlass::layout::nZ"};

struct TypedParams {
  std::map<std::string, int> element;
  std::map<std::string, bool> transpose;
  std::map<std::string, bool> use_nz;
};

TypedParams typed_params(const Call& call) {
  TypedParams params;
  params.element = {{"A", call.dtypes[0]}, {"B", call.dtypes[1]}, {"C", call.dtypes[2]}};
  params.transpose = {{"A", call.layouts[0] % 2 == 1}, {"B", call.layouts[1] % 2 == 1}};
  params.use_nz = {{"A", call.layouts[0] > 1}, {"B", call.layouts[1] > 1}};
  return params;
}

std::map<std::string, std::string> macros(const Call& call, const TypedParams& params) {
  std::map<std::string, std::string> result;
  for (const auto& [name, type] : params.element) {
    result["CATLASS_JIT_ELEMENT_" + name] = kTypes[type];
  }
  for (const auto& [name, transposed] : params.transpose) {
    const int layout = (transposed ? 1 : 0) + (params.use_nz.at(name) ? 2 : 0);
    result["CATLASS_JIT_LAYOUT_" + name] = kLayouts[layout];
  }
  result["CATLASS_JIT_LAYOUT_C"] = kLayouts[0];
  result["CATLASS_KERNEL_NAME"] = "kernel_" + std::to_string(call.op);
  result["EPILOGUE"] = std::to_string(call.epilogue);
  result["K_GT_N"] = call.big ? "1" : "0";
  std::string name = result["CATLASS_KERNEL_NAME"];
  for (const auto& [key, value] : result) name += "_" + value;
  result["CATLASS_JIT_KERNEL_NAME"] = name;
  return result;
}

std::string key_text(const Call& call) {
  std::string text;
  for (const auto& [name, value] : macros(call, typed_params(call)))
    text += name + "=" + value + "&";
  return text + "__ARCH__=2201&__KT__=AIC";
}

double peers(uint32_t kernels, uint32_t lookups) {
  std::map<std::string, const void*> loaded;
  std::mutex mutex;
  static const char binary = 0;
  std::vector<Call> calls;
  for (uint32_t i = 0; i < kernels; ++i) {
    calls.push_back(call_number(i));
    loaded[sha256_hex(key_text(calls.back()))] = &binary;
  }
  const double start = now_ns();
  for (uint32_t i = 0; i < lookups; ++i) {
    const std::string key = sha256_hex(key_text(calls[i % kernels]));
    std::lock_guard lock(mutex);
    use(loaded.find(key)->second);
  }
  return (now_ns() - start) / lookups;
}

}  // namespace

extern "C" {
double lookup_ours(uint32_t kernels, uint32_t lookups, uint32_t threads) {
  return ours(kernels, lookups, threads);
}
double lookup_peers(uint32_t kernels, uint32_t lookups) { return peers(kernels, lookups); }
// Of a text, in hex: so that the peer's part can be checked against hashlib.
void lookup_sha256(const char* text, char* hex) { std::strcpy(hex, sha256_hex(text).c_str()); }
}
