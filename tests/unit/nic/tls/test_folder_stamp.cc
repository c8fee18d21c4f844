#include <catch2/catch.hpp>
#include <filesystem>

#include "nic/tls/folder_stamp.h"
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
    // As an installer does: a new file takes the place of the former one.
    const std::string file = folder.path() + "/" + name;
    std::filesystem::copy_file(file, file + ".new");
    std::filesystem::rename(file + ".new", file);
    CHECK(tls::stamp_of(folder.path()) != before);
  }
}

}  // namespace pbox::test
