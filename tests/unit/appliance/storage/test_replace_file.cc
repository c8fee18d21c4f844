// Replacing a file durably: what is found afterwards if a step fails or the machine crashes, and
// what the errors say.
#include <sys/fsuid.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <set>

#include "appliance/storage/input_file.h"
#include "appliance/storage/replace_file.h"
#include "tests/support/crashing_disk.h"

namespace pbox::storage {
namespace {

namespace fs = std::filesystem;
using Catch::Contains;

class Folder {
 public:
  Folder() {
    std::string name = fs::temp_directory_path() / "pbox-storage-XXXXXX";
    REQUIRE(mkdtemp(name.data()) != nullptr);
    path_ = name;
  }
  ~Folder() {
    fs::permissions(path_, fs::perms::owner_all);
    fs::remove_all(path_);
  }
  Folder(const Folder&) = delete;
  Folder& operator=(const Folder&) = delete;

  std::string file(const std::string& name) const { return path_ + "/" + name; }
  const std::string& path() const { return path_; }
  std::set<std::string> names() const {
    std::set<std::string> names;
    for (const auto& entry : fs::directory_iterator(path_)) names.insert(entry.path().filename());
    return names;
  }

 private:
  std::string path_;
};

std::string contents_of(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

// Takes root's right to write everywhere from this thread, for the duration of a scope.
class OrdinaryUser {
 public:
  OrdinaryUser() {
    if (geteuid() == 0) setfsuid(65534);
  }
  ~OrdinaryUser() { setfsuid(geteuid()); }
  OrdinaryUser(const OrdinaryUser&) = delete;
  OrdinaryUser& operator=(const OrdinaryUser&) = delete;
};

// Files cannot grow beyond `bytes`, as on a full disk, for the duration of a scope.
class FileSizeLimit {
 public:
  explicit FileSizeLimit(rlim_t bytes) : handler_(std::signal(SIGXFSZ, SIG_IGN)) {
    getrlimit(RLIMIT_FSIZE, &before_);
    const rlimit limit{bytes, before_.rlim_max};
    setrlimit(RLIMIT_FSIZE, &limit);
  }
  ~FileSizeLimit() {
    setrlimit(RLIMIT_FSIZE, &before_);
    std::signal(SIGXFSZ, handler_);
  }
  FileSizeLimit(const FileSizeLimit&) = delete;
  FileSizeLimit& operator=(const FileSizeLimit&) = delete;

 private:
  rlimit before_{};
  void (*handler_)(int);
};

}  // namespace

TEST_CASE("a file is created, and replaced by another of any length") {
  const Folder folder;
  const std::string path = folder.file("state");
  for (const std::string& bytes :
       {std::string("first"), std::string(100'000, 'x'), std::string()}) {
    REQUIRE(replace_file(path, bytes).ok());
    CHECK(contents_of(path) == bytes);
  }
  CHECK(folder.names() == std::set<std::string>{"state"});
  struct stat status {};
  REQUIRE(stat(path.c_str(), &status) == 0);
  CHECK((status.st_mode & 07777 & ~0640u) == 0);  // others may not read it, whatever the umask
}

TEST_CASE("a file keeps its old contents until its replacement is committed") {
  const Folder folder;
  const std::string path = folder.file("state");
  REQUIRE(replace_file(path, "old").ok());
  auto replacement = FileReplacement::begin(path);
  REQUIRE(replacement.ok());
  REQUIRE(replacement->write("new ", 4).ok());
  REQUIRE(replacement->write("text", 4).ok());
  CHECK(contents_of(path) == "old");
  REQUIRE(replacement->commit().ok());
  CHECK(contents_of(path) == "new text");
  CHECK(folder.names() == std::set<std::string>{"state"});
}

TEST_CASE("a replacement that is abandoned leaves the old contents and no temporary file") {
  const Folder folder;
  const std::string path = folder.file("state");
  REQUIRE(replace_file(path, "old").ok());
  {
    auto replacement = FileReplacement::begin(path);
    REQUIRE(replacement.ok());
    FileReplacement moved = std::move(*replacement);
    REQUIRE(moved.write("new", 3).ok());
    CHECK(folder.names() == std::set<std::string>{"state", "state.new"});
  }
  CHECK(contents_of(path) == "old");
  CHECK(folder.names() == std::set<std::string>{"state"});
}

TEST_CASE("a torn temporary file that a crash has left is overwritten") {
  const Folder folder;
  const std::string path = folder.file("state");
  REQUIRE(replace_file(path, "old").ok());
  std::ofstream(path + FileReplacement::kTemporarySuffix) << "a longer text, cut off in the midd";
  CHECK(contents_of(path) == "old");
  REQUIRE(replace_file(path, "new").ok());
  CHECK(contents_of(path) == "new");
  CHECK(folder.names() == std::set<std::string>{"state"});
}

TEST_CASE("in a read-only folder the error names the file, and nothing changes") {
  const Folder folder;
  const std::string path = folder.file("state");
  REQUIRE(replace_file(path, "old").ok());
  fs::permissions(folder.path(), fs::perms(0555));
  const OrdinaryUser user;
  const Status replaced = replace_file(path, "new");
  REQUIRE_FALSE(replaced.ok());
  CHECK(replaced.error().code == ErrorCode::kSystem);
  CHECK_THAT(replaced.error().message, Contains("cannot create " + path) && Contains("denied"));
  CHECK(folder.names() == std::set<std::string>{"state"});
}

TEST_CASE("in a folder that does not exist the error names the folder") {
  const Status replaced = replace_file("/proc/nowhere/state", "new");
  REQUIRE_FALSE(replaced.ok());
  CHECK_THAT(replaced.error().message, Contains("/proc/nowhere"));
  CHECK_FALSE(sync_folder("/proc/nowhere").ok());
}

TEST_CASE("on a full disk the old contents stay, and the torn temporary file is deleted") {
  const Folder folder;
  const std::string path = folder.file("state");
  REQUIRE(replace_file(path, "old").ok());
  const Status replaced = [&] {
    const FileSizeLimit limit(10'000);
    return replace_file(path, std::string(20'000, 'x'));
  }();
  REQUIRE_FALSE(replaced.ok());
  CHECK_THAT(replaced.error().message, Contains("cannot write " + path));
  CHECK(contents_of(path) == "old");
  CHECK(folder.names() == std::set<std::string>{"state"});
}

TEST_CASE("a name that is a folder cannot be replaced, and no temporary file stays") {
  const Folder folder;
  fs::create_directory(folder.file("state"));
  const Status replaced = replace_file(folder.file("state"), "new");
  REQUIRE_FALSE(replaced.ok());
  CHECK_THAT(replaced.error().message, Contains("cannot rename"));
  CHECK(folder.names() == std::set<std::string>{"state"});
}

TEST_CASE("after a crash at any step a file has its old contents or its new ones, whole") {
  const std::string old_text = "old", new_text = "new and longer";
  for (int steps = 0; steps <= 5; ++steps) {
    CAPTURE(steps);
    test::CrashingDisk disk;
    REQUIRE(replace_file(disk, "state", old_text).ok());
    disk.steps_left = steps;
    const bool replaced = replace_file(disk, "state", new_text).ok();
    CHECK(replaced == (steps >= 4));
    disk.crash();
    const auto found = disk.read("state");
    REQUIRE((found.ok() && found->has_value()));
    CHECK((**found == old_text || **found == new_text));
    if (replaced) CHECK(**found == new_text);
    REQUIRE(replace_file(disk, "state", "last").ok());
    disk.crash();
    CHECK(**disk.read("state") == "last");
  }
}

TEST_CASE("an input file is read in pieces, and says where it ends") {
  const Folder folder;
  const std::string path = folder.file("input");
  REQUIRE(replace_file(path, "abcdef").ok());
  auto file = InputFile::open(path);
  REQUIRE(file.ok());
  char text[5] = {};
  CHECK(*file->read(text, 4));
  CHECK(std::string(text) == "abcd");
  CHECK(*file->read(text, 2));
  CHECK(std::string(text) == "efcd");
  CHECK_FALSE(*file->read(text, 1));
  const auto missing = InputFile::open(folder.file("missing"));
  REQUIRE_FALSE(missing.ok());
  CHECK_THAT(missing.error().message, Contains("cannot open " + folder.file("missing")));
}

}  // namespace pbox::storage
