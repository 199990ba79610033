#include "engine/util/sha256.h"

#include <algorithm>
#include <bit>
#include <cstdio>
#include <fstream>
#include <vector>

namespace bringup::engine {
namespace {

// The first 32 bits of the fractional parts of the cube roots of the first 64 primes.
constexpr uint32_t kRound[64] = {
    0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5,
    0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174,
    0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
    0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967,
    0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
    0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070,
    0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
    0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2};

uint32_t big_endian(const std::byte* bytes) {
  uint32_t word = 0;
  for (int index = 0; index < 4; ++index)
    word = word << 8 | std::to_integer<uint32_t>(bytes[index]);
  return word;
}

std::array<uint32_t, 64> schedule(const std::byte* block) {
  std::array<uint32_t, 64> words;
  for (size_t i = 0; i < 16; ++i) words[i] = big_endian(block + 4 * i);
  for (size_t i = 16; i < 64; ++i) {
    const uint32_t early = words[i - 15], late = words[i - 2];
    const uint32_t low = std::rotr(early, 7) ^ std::rotr(early, 18) ^ early >> 3;
    const uint32_t high = std::rotr(late, 17) ^ std::rotr(late, 19) ^ late >> 10;
    words[i] = words[i - 16] + low + words[i - 7] + high;
  }
  return words;
}

}  // namespace

void Sha256::compress(const std::byte* block) {
  const std::array<uint32_t, 64> words = schedule(block);
  auto [a, b, c, d, e, f, g, h] = state_;
  for (size_t i = 0; i < 64; ++i) {
    const uint32_t mixed_e = std::rotr(e, 6) ^ std::rotr(e, 11) ^ std::rotr(e, 25);
    const uint32_t mixed_a = std::rotr(a, 2) ^ std::rotr(a, 13) ^ std::rotr(a, 22);
    const uint32_t first = h + mixed_e + ((e & f) ^ (~e & g)) + kRound[i] + words[i];
    const uint32_t second = mixed_a + ((a & b) ^ (a & c) ^ (b & c));
    h = g;
    g = f;
    f = e;
    e = d + first;
    d = c;
    c = b;
    b = a;
    a = first + second;
  }
  const uint32_t added[] = {a, b, c, d, e, f, g, h};
  for (size_t i = 0; i < state_.size(); ++i) state_[i] += added[i];
}

void Sha256::update(std::span<const std::byte> data) {
  size_ += data.size();
  while (!data.empty()) {
    if (pending_size_ == 0 && data.size() >= kBlock) {
      compress(data.data());
      data = data.subspan(kBlock);
      continue;
    }
    const size_t taken = std::min(kBlock - pending_size_, data.size());
    std::copy_n(data.begin(), taken, pending_.begin() + static_cast<ptrdiff_t>(pending_size_));
    pending_size_ += taken;
    data = data.subspan(taken);
    if (pending_size_ < kBlock) return;
    compress(pending_.data());
    pending_size_ = 0;
  }
}

// A bit that is 1, zeros up to the last 8 bytes of a block, and the number of bits.
std::string Sha256::finish() {
  const uint64_t bits = size_ * 8;
  const size_t used = pending_size_;
  std::array<std::byte, 2 * kBlock> tail{};
  tail[0] = std::byte{0x80};
  const size_t zeros_end = used < kBlock - 8 ? kBlock - 8 - used : 2 * kBlock - 8 - used;
  for (size_t index = 0; index < 8; ++index) {
    tail[zeros_end + index] = static_cast<std::byte>(bits >> (56 - 8 * index));
  }
  update({tail.data(), zeros_end + 8});
  std::string text;
  char word[9];
  for (const uint32_t part : state_) {
    std::snprintf(word, sizeof word, "%08x", part);
    text += word;
  }
  return text;
}

std::string sha256_of_file(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  Sha256 hash;
  std::vector<char> part(1 << 16);
  while (file.read(part.data(), static_cast<std::streamsize>(part.size())), file.gcount() > 0) {
    hash.update(std::as_bytes(std::span(part.data(), static_cast<size_t>(file.gcount()))));
  }
  return file.eof() ? hash.finish() : "";
}

}  // namespace bringup::engine
