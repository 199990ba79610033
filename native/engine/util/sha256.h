// SHA-256 (FIPS 180-4): identifies the content of a file.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

namespace bringup::engine {

class Sha256 {
 public:
  void update(std::span<const std::byte> data);
  // The digest of all that was given, in hexadecimal; nothing may be added afterwards.
  std::string finish();

 private:
  static constexpr size_t kBlock = 64;
  void compress(const std::byte* block);

  std::array<uint32_t, 8> state_ = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a,
                                    0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};
  std::array<std::byte, kBlock> pending_{};
  size_t pending_size_ = 0;
  uint64_t size_ = 0;
};

std::string sha256_of_file(const std::string& path);  // "" when it cannot be read

}  // namespace bringup::engine
