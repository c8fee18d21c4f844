// Memory that had held a private key is freed only after the key was erased. This file replaces the
// allocator's `delete` of the whole program.
#include <malloc.h>

#include <algorithm>
#include <catch2/catch.hpp>
#include <cstdlib>
#include <new>
#include <string>
#include <string_view>

#include "nic/tls/pem.h"
#include "nic/tls/token.h"
#include "tests/support/key_folder.h"

namespace pbox::test::freed_keys_test {
namespace {

// Text that freed memory must not hold; empty while nothing is looked for. One thread.
std::string_view secret;
size_t freed_secrets = 0;

void look_at(void* memory) {
  if (secret.empty() || memory == nullptr) return;
  const std::string_view bytes(static_cast<const char*>(memory), malloc_usable_size(memory));
  if (bytes.find(secret) != std::string_view::npos) ++freed_secrets;
}

// Returns how many blocks with the text `looked_for` are freed while `action` runs.
template <typename Action>
size_t count_freed(std::string_view looked_for, Action action) {
  freed_secrets = 0;
  secret = looked_for;
  action();
  secret = {};
  return freed_secrets;
}

}  // namespace

TEST_CASE("a private file that is read leaves no copy of itself in freed memory") {
  const TemporaryFolder folder;
  const std::string path = folder.path() + "/key.pem", key = "the first line, which is secret";
  folder.write("key.pem", key + std::string(40'000, 'x'));
  Result<std::string> read = Error{};
  CHECK(count_freed(key, [&] { read = tls::read_private_file(path); }) == 0);
  REQUIRE(read.ok());
  CHECK(read->size() == key.size() + 40'000);
}

TEST_CASE("a token that is read leaves no copy of its text in freed memory") {
  const TemporaryFolder folder;
  for (size_t bytes = 8'000; bytes < 8'003; ++bytes) {  // with each length of the padding
    tls::KeyFiles files;
    files.authorities = "ca";
    files.certificate = "certificate";
    files.key = std::string(bytes, 'x');
    const std::string token = tls::make_token(files);
    folder.write("token", token);
    Result<tls::KeyFiles> read = Error{};
    CHECK(count_freed(token.substr(4'000, 100),
                      [&] { read = tls::read_key_files(folder.path() + "/token"); }) == 0);
    REQUIRE(read.ok());
    CHECK(read->key == files.key);
  }
}

}  // namespace pbox::test::freed_keys_test

void operator delete(void* memory) noexcept {
  pbox::test::freed_keys_test::look_at(memory);
  std::free(memory);
}
void operator delete(void* memory, size_t /*bytes*/) noexcept {
  pbox::test::freed_keys_test::look_at(memory);
  std::free(memory);
}
void* operator new(size_t bytes) {
  if (void* memory = std::malloc(bytes)) return memory;
  throw std::bad_alloc();
}
void* operator new(size_t bytes, const std::nothrow_t& /*unused*/) noexcept {
  return std::malloc(bytes);
}
