// The published examples of SHA-256, and lengths around its blocks.
#include <vector>

#include "check.h"
#include "engine/util/sha256.h"

using bringup::engine::Sha256;

namespace {

std::string digest(std::string_view text) {
  Sha256 sha;
  sha.update(std::as_bytes(std::span(text)));
  return sha.finish();
}

}  // namespace

TEST(digests_are_those_of_the_standard) {
  CHECK_EQ(digest(""), "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
  CHECK_EQ(digest("abc"), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  CHECK_EQ(digest("abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq"),
           "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1");
  CHECK_EQ(digest(std::string(1000000, 'a')),
           "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0");
}

TEST(pieces_of_any_length_give_the_digest_of_the_whole) {
  const std::string text(300, 'x');
  for (const size_t length : {1u, 55u, 56u, 63u, 64u, 65u, 119u, 128u, 300u}) {
    const std::string_view whole = std::string_view(text).substr(0, length);
    for (const size_t step : {1u, 7u, 64u, 100u}) {
      Sha256 sha;
      for (size_t start = 0; start < length; start += step) {
        sha.update(std::as_bytes(std::span(whole.substr(start, step))));
      }
      CHECK_EQ(sha.finish(), digest(whole));
    }
  }
}
