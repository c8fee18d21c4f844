// The flight recorders' files: what is found at the start, what is kept, what is left behind.
#include <unistd.h>

#include <catch2/catch.hpp>
#include <filesystem>
#include <fstream>
#include <set>

#include "appliance/pipelines/flight_recorder.h"
#include "base/numa_arena.h"
#include "pipeline/observe/flight_image.h"
#include "pipeline/observe/flight_ring.h"

namespace pbox::pipelines {
namespace {

namespace fs = std::filesystem;
using Catch::Contains;

class Folder {
 public:
  Folder() : path_(fs::temp_directory_path() / ("pbox-flight-" + std::to_string(getpid()))) {
    fs::remove_all(path_);
    fs::create_directory(path_);
  }
  ~Folder() { fs::remove_all(path_); }
  Folder(const Folder&) = delete;
  Folder& operator=(const Folder&) = delete;
  std::string path() const { return path_; }

  // A file beside the folder.
  class Target {
   public:
    explicit Target(const Folder& folder) : path_(folder.path() + "-target") {
      std::ofstream(path_) << kText;
    }
    ~Target() { fs::remove(path_); }
    Target(const Target&) = delete;
    Target& operator=(const Target&) = delete;
    std::string path() const { return path_; }
    bool is_untouched() const {
      std::string text;
      std::getline(std::ifstream(path_), text);
      return text == kText;
    }

   private:
    static constexpr const char* kText = "untouched";
    std::string path_;
  };
  std::set<std::string> names() const {
    std::set<std::string> names;
    for (const auto& entry : fs::directory_iterator(path_)) names.insert(entry.path().filename());
    return names;
  }

 private:
  fs::path path_;
};

std::unique_ptr<FlightRecorder> start(const std::string& directory) {
  auto recorder = FlightRecorder::start({.directory = directory, .records = 5'000},
                                        {kAnyNumaNode, kAnyNumaNode});
  REQUIRE(recorder);
  return std::move(*recorder);
}

std::vector<pipeline::FlightImage> images_of(const std::string& bytes) {
  auto images = pipeline::read_flight_images(std::as_bytes(std::span(bytes)));
  REQUIRE(images);
  return std::move(*images);
}

void write_left(const FlightRecorder& recorder, uint32_t pipeline, uint32_t chunk) {
  pipeline::FlightRing ring(recorder.ring(pipeline));
  ring.add(pipeline::FlightKind::kLeft, 1, 7, pipeline::LeftRecord{.chunk = chunk});
}

}  // namespace

TEST_CASE("links in the directory lead nowhere") {
  const Folder folder;
  const Folder::Target target(folder);
  SECTION("the lock") {
    fs::create_symlink(target.path(), folder.path() + "/lock");
    const auto recorder = start(folder.path());
    CHECK_THAT(recorder->warning(), Contains("in memory only"));
  }
  SECTION("a ring that a crash seems to have left") {
    fs::create_symlink(target.path(), folder.path() + "/pipeline-0.ring");
    const auto recorder = start(folder.path());
    CHECK(recorder->crash_file().empty());
    CHECK_FALSE(fs::is_symlink(folder.path() + "/pipeline-0.ring"));
  }
  CHECK(target.is_untouched());
}

TEST_CASE("each pipeline has a ring, of a power of two records, which a copy shows") {
  const Folder folder;
  for (const std::string& directory : {folder.path(), std::string()}) {
    const auto recorder = start(directory);
    CHECK(recorder->warning() == "");
    CHECK(recorder->ring(0).size() == pipeline::flight_image_bytes(8'192));
    write_left(*recorder, 1, 42);
    const auto copy = recorder->copy();
    REQUIRE(copy);
    const auto images = images_of(*copy);
    REQUIRE(images.size() == 2);
    CHECK(images[0].records.empty());
    CHECK(images[1].pipeline_index == 1);
    REQUIRE(images[1].records.size() == 1);
    CHECK(images[1].records[0].at_ns == 7);
  }
}

TEST_CASE("the newest files of each kind are kept") {
  const Folder folder;
  for (const int day : {1, 2, 3, 4, 5}) {
    for (const std::string kind : {"late-", "crash-"}) {
      std::ofstream(folder.path() + "/" + kind + "2020010" + std::to_string(day) +
                    "T000000.000Z.flight");
    }
  }
  const auto recorder = start(folder.path());
  const auto written = recorder->write("late");
  REQUIRE(written);
  CHECK(fs::file_size(*written) == 2 * pipeline::flight_image_bytes(1));
  const auto names = folder.names();
  CHECK(names.count("late-20200102T000000.000Z.flight") == 0);
  CHECK(names.count("late-20200103T000000.000Z.flight") == 1);
  CHECK(names.count("crash-20200101T000000.000Z.flight") == 1);
}

TEST_CASE("a box that stops in order leaves no file; a crashed one's file is kept or deleted") {
  const Folder folder;
  start(folder.path());
  CHECK(folder.names() == std::set<std::string>{"lock"});
  // A file that is not a ring, like one that an interrupted start may leave.
  std::ofstream(folder.path() + "/pipeline-7.ring") << "half";
  const auto recorder = start(folder.path());
  CHECK(recorder->crash_file() == "");
  CHECK_THAT(recorder->warning(), Contains("pipeline-7.ring is deleted unread"));
  CHECK(folder.names() == std::set<std::string>{"lock", "pipeline-0.ring", "pipeline-1.ring"});

  // The state after a crash: the files are there, and nobody holds the lock.
  write_left(*recorder, 0, 9);
  const std::string crashed = folder.path() + "-crashed";
  fs::copy(folder.path(), crashed);
  const auto next = start(crashed);
  REQUIRE(next->crash_file().starts_with(crashed + "/crash-"));
  std::ifstream file(next->crash_file(), std::ios::binary);
  const auto images = images_of({std::istreambuf_iterator<char>(file), {}});
  REQUIRE(images.size() == 2);
  CHECK(images[0].records.size() == 1);
  fs::remove_all(crashed);
}

TEST_CASE("a torn temporary file that a crash has left is deleted at the next start") {
  const Folder folder;
  std::ofstream(folder.path() + "/late-20200101T000000.000Z.flight.new") << "half";
  const auto recorder = start(folder.path());
  CHECK(folder.names() == std::set<std::string>{"lock", "pipeline-0.ring", "pipeline-1.ring"});
}

TEST_CASE("without a folder of its own a box records in memory, and says so") {
  const Folder folder;
  const auto first = start(folder.path());
  const auto second = start(folder.path());
  CHECK_THAT(second->warning(),
             Contains("another pboxd uses " + folder.path()) && Contains("recorder.directory"));
  CHECK(second->copy());
  CHECK_FALSE(second->write("late"));
  const auto nowhere = start(folder.path() + "/nowhere");
  CHECK_THAT(nowhere->warning(), Contains("cannot make " + folder.path() + "/nowhere/lock"));
  CHECK(nowhere->copy());
}

}  // namespace pbox::pipelines
