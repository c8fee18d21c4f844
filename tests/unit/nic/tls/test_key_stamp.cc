#include <catch2/catch.hpp>
#include <filesystem>

#include "nic/tls/key_stamp.h"
#include "tests/support/key_folder.h"

namespace pbox::test {

TEST_CASE("a folder's stamp stays while its files do, and differs after each change") {
  const KeyFolder folder(authority(), "pbox://rack/box/a");
  const auto before = tls::stamp_of(folder.path());
  CHECK(tls::stamp_of(folder.path()) == before);
  folder.write("crl.pem", "a list");
  const auto with_list = tls::stamp_of(folder.path());
  CHECK(with_list != before);
  std::filesystem::remove(folder.path() + "/crl.pem");
  CHECK(tls::stamp_of(folder.path()) == before);
  for (const char* name : {"ca.pem", "cert.pem", "key.pem"}) {
    // Like an installer, puts a new file in the place of the former one.
    const std::string file = folder.path() + "/" + name;
    std::filesystem::copy_file(file, file + ".new");
    std::filesystem::rename(file + ".new", file);
    CHECK(tls::stamp_of(folder.path()) != before);
  }
}

TEST_CASE("a folder's stamp does not change with files of other names") {
  const KeyFolder folder(authority(), "pbox://rack/box/a");
  const auto before = tls::stamp_of(folder.path());
  folder.write("notes", "not a key");
  CHECK(tls::stamp_of(folder.path()) == before);
}

TEST_CASE("a token's stamp differs once another file has taken its place") {
  const TemporaryFolder folder;
  const std::string token = folder.path() + "/token";
  folder.write("token", "a token");
  const auto before = tls::stamp_of(token);
  CHECK(tls::stamp_of(token) == before);
  folder.write("token.new", "a token");
  std::filesystem::rename(token + ".new", token);
  CHECK(tls::stamp_of(token) != before);
}

}  // namespace pbox::test
