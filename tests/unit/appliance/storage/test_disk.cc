// State folders and disks in memory.
#include <unistd.h>

#include <catch2/catch.hpp>
#include <filesystem>

#include "appliance/storage/replace_file.h"

namespace pbox::storage::disk_test {
namespace {

using Catch::Contains;

std::string fresh_folder() {
  std::string name = std::filesystem::temp_directory_path() / "pbox-state-XXXXXX";
  REQUIRE(mkdtemp(name.data()) != nullptr);
  return name;
}

}  // namespace

TEST_CASE("a state folder is created if it is missing, and keeps its files") {
  const std::string parent = fresh_folder();
  const std::string folder = parent + "/state";
  {
    const auto disk = open_state_folder(folder);
    REQUIRE(disk.ok());
    CHECK_FALSE((*disk)->read("epoch")->has_value());
    REQUIRE(replace_file(**disk, "epoch", "17").ok());
  }
  const auto disk = open_state_folder(folder);
  REQUIRE(disk.ok());
  CHECK(**(*disk)->read("epoch") == "17");
  (*disk)->remove("epoch");
  CHECK_FALSE((*disk)->read("epoch")->has_value());
  std::filesystem::remove_all(parent);
}

TEST_CASE("two boxes cannot share a state folder") {
  const std::string folder = fresh_folder();
  const auto first = open_state_folder(folder);
  REQUIRE(first.ok());
  const auto second = open_state_folder(folder);
  REQUIRE_FALSE(second.ok());
  CHECK_THAT(second.error().message,
             Contains("another pboxd") && Contains("--cluster.state_directory"));
  CHECK(open_folder(folder).ok());  // other programs may read it
  std::filesystem::remove_all(folder);
}

TEST_CASE("a state folder that cannot be created is an error with its name and the remedy") {
  const auto disk = open_state_folder("/proc/nowhere/state");
  REQUIRE_FALSE(disk.ok());
  CHECK_THAT(disk.error().message,
             Contains("/proc/nowhere/state") && Contains("--cluster.state_directory"));
}

TEST_CASE("without a name files are kept in memory, apart from those of any other disk") {
  const auto first = open_state_folder("");
  const auto second = open_state_folder("");
  REQUIRE((first.ok() && second.ok()));
  for (const std::string text : {"a longer text", "short", ""}) {
    REQUIRE(replace_file(**first, "epoch", text).ok());
    CHECK(**(*first)->read("epoch") == text);
  }
  CHECK_FALSE((*first)->read("epoch.new")->has_value());
  CHECK_FALSE((*second)->read("epoch")->has_value());
}

TEST_CASE("a checksum is that of CRC32C, in hexadecimal") {
  CHECK(checksum("") == "00000000");
  CHECK(checksum("123456789") == "e3069283");  // RFC 3720
}

}  // namespace pbox::storage::disk_test
