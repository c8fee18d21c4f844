// The two suites, by each library: they equal a reference that gives the vectors of the standard's
// authors, and they open nothing but what was sealed.
#include <catch2/catch.hpp>
#include <cstring>
#include <random>

#include "nic/crypto/cipher.h"
#include "tests/support/hexadecimal.h"
#include "tests/unit/nic/crypto/gcm_reference.h"

namespace pbox::test {
namespace {

using crypto::Cipher;
using crypto::Library;
using crypto::Suite;

void draw_keys(std::mt19937_64& random, crypto::Keys& keys) {
  for (std::byte& byte : keys.key.bytes) byte = std::byte(random());
  for (std::byte& byte : keys.iv.bytes) byte = std::byte(random());
}

wire::Header header_of(uint64_t packet_number, size_t payload_bytes) {
  wire::Header header;
  header.set_type(wire::PacketType::kPush);
  header.spi = 0x81020304;
  header.packet_number = packet_number;
  header.payload_bytes = static_cast<uint16_t>(payload_bytes);
  return header;
}

std::string nonce_of(const crypto::Keys& keys, uint64_t packet_number) {
  std::string nonce = text_of(keys.iv.bytes);
  for (size_t index = 0; index < 8; ++index) {
    nonce[4 + index] = static_cast<char>(nonce[4 + index] ^ (packet_number >> (56 - 8 * index)));
  }
  return nonce;
}

struct Case {
  Suite suite;
  Library library;
};
const Case kCases[] = {{Suite::kGmac256, Library::kFastest},
                       {Suite::kGmac256, Library::kOpenSsl},
                       {Suite::kGcm256, Library::kFastest},
                       {Suite::kGcm256, Library::kOpenSsl}};

std::unique_ptr<Cipher> cipher_of(const Case& made, const crypto::Keys& keys,
                                  crypto::SecretPages& pages) {
  auto cipher = crypto::make_cipher(made.suite, pages, made.library);
  REQUIRE(cipher);
  (*cipher)->set_keys(keys);
  return std::move(*cipher);
}

}  // namespace

// Cases 13 to 16 of McGrew and Viega, "The Galois/Counter Mode of Operation (GCM)", 2004, appendix
// B.
TEST_CASE("the reference of GCM gives the vectors of its authors") {
  const std::string zeros(32, '\0');
  CHECK(gcm_reference(zeros, std::string(12, '\0'), "", "").tag ==
        from_hexadecimal("530f8afbc74536b9a963b4f1c4cb738b"));
  const Sealed block = gcm_reference(zeros, std::string(12, '\0'), "", std::string(16, '\0'));
  CHECK(block.text == from_hexadecimal("cea7403d4d606b6e074ec5d3baf39d18"));
  CHECK(block.tag == from_hexadecimal("d0d1c8a799996bf0265b98b5d48ab919"));

  const std::string key =
      from_hexadecimal("feffe9928665731c6d6a8f9467308308feffe9928665731c6d6a8f9467308308");
  const std::string nonce = from_hexadecimal("cafebabefacedbaddecaf888");
  const std::string plain = from_hexadecimal(
      "d9313225f88406e5a55909c5aff5269a86a7a9531534f7da2e4c303d8a318a72"
      "1c3c0c95956809532fcf0e2449a6b525b16aedf5aa0de657ba637b391aafd255");
  const std::string text = from_hexadecimal(
      "522dc1f099567d07f47f37a32a84427d643a8cdcbfe5c0c97598a2bd2555d1aa"
      "8cb08e48590dbb3da7b08b1056828838c5f61e6393ba7a0abcc9f662898015ad");
  const Sealed whole = gcm_reference(key, nonce, "", plain);
  CHECK(whole.text == text);
  CHECK(whole.tag == from_hexadecimal("b094dac5d93471bdec1a502270e3cc6c"));
  const std::string aad = from_hexadecimal("feedfacedeadbeeffeedfacedeadbeefabaddad2");
  const Sealed cut = gcm_reference(key, nonce, aad, plain.substr(0, 60));
  CHECK(cut.text == text.substr(0, 60));
  CHECK(cut.tag == from_hexadecimal("76fc6ece0f4e1768cddf8853bb2d551b"));
}

TEST_CASE("each library seals as the reference does, whatever the length") {
  std::mt19937_64 random(7);
  crypto::SecretPages pages;
  for (const Case& made : kCases) {
    crypto::Keys keys;
    draw_keys(random, keys);
    const auto cipher = cipher_of(made, keys, pages);
    for (const size_t bytes : {0, 1, 4, 15, 16, 17, 31, 32, 100, 128, 1000, 1404, 8192}) {
      std::vector<std::byte> payload(bytes), to(bytes);
      for (std::byte& byte : payload) byte = std::byte(random());
      const wire::Header header = header_of(random(), bytes);
      const auto words = std::bit_cast<wire::HeaderWords>(header);
      const std::string head(reinterpret_cast<const char*>(&header), sizeof(header));
      const std::string nonce = nonce_of(keys, header.packet_number);
      const bool encrypts = made.suite == Suite::kGcm256;
      const Sealed wanted =
          encrypts ? gcm_reference(text_of(keys.key.bytes), nonce, head, text_of(payload))
                   : gcm_reference(text_of(keys.key.bytes), nonce, text_of(payload) + head, "");
      CAPTURE(static_cast<int>(made.suite), static_cast<int>(made.library), bytes);
      const wire::Tag tag = cipher->seal(words, payload, to.data());
      CHECK(text_of(tag) == wanted.tag);
      if (encrypts) CHECK(text_of(to) == wanted.text);
      const std::vector<std::byte>& sent = encrypts ? to : payload;
      std::vector<std::byte> opened(bytes);
      CHECK(cipher->open(words, sent, tag, opened.data()));
      if (encrypts) CHECK(opened == payload);
      // In place, as packets are opened where they have arrived.
      std::vector<std::byte> in_place = payload;
      CHECK(cipher->seal(words, in_place, in_place.data()) == tag);
      CHECK(in_place == sent);
      CHECK(cipher->open(words, in_place, tag, in_place.data()));
      CHECK(in_place == payload);
    }
  }
}

TEST_CASE("a packet in which any bit differs is not opened") {
  std::mt19937_64 random(11);
  crypto::SecretPages pages;
  for (const Case& made : kCases) {
    crypto::Keys keys, others;
    draw_keys(random, keys);
    draw_keys(random, others);
    const auto cipher = cipher_of(made, keys, pages);
    const auto other = cipher_of(made, others, pages);
    constexpr size_t kBytes = 50;
    std::vector<std::byte> payload(kBytes), to(kBytes);
    const auto words = std::bit_cast<wire::HeaderWords>(header_of(9, kBytes));
    const wire::Tag tag = cipher->seal(words, payload, to.data());
    const std::vector<std::byte> sent = made.suite == Suite::kGcm256 ? to : payload;
    std::vector<std::byte> opened(kBytes);
    REQUIRE(cipher->open(words, sent, tag, opened.data()));
    CHECK_FALSE(other->open(words, sent, tag, opened.data()));
    CHECK_FALSE(cipher->open(words, std::span(sent).first(kBytes - 1), tag, opened.data()));
    for (size_t bit = 0; bit < 8 * kBytes; ++bit) {
      std::vector<std::byte> changed = sent;
      changed[bit / 8] ^= std::byte(1 << bit % 8);
      REQUIRE_FALSE(cipher->open(words, changed, tag, opened.data()));
    }
    for (size_t bit = 0; bit < 8 * sizeof(words); ++bit) {
      wire::HeaderWords changed = words;
      changed[bit / 64] ^= uint64_t{1} << bit % 64;
      REQUIRE_FALSE(cipher->open(changed, sent, tag, opened.data()));
    }
    for (size_t bit = 0; bit < 8 * tag.size(); ++bit) {
      wire::Tag changed = tag;
      changed[bit / 8] ^= std::byte(1 << bit % 8);
      REQUIRE_FALSE(cipher->open(words, sent, changed, opened.data()));
    }
  }
}

}  // namespace pbox::test
