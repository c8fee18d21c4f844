// Snapshots on a real disk: they are read back, also into other parts, and damage is detected.
#include <boost/asio/io_context.hpp>
#include <catch2/catch.hpp>
#include <filesystem>
#include <fstream>

#include "appliance/snapshot/disk_store.h"
#include "appliance/snapshot/folder.h"

namespace pbox::snapshot {
namespace {

namespace fs = std::filesystem;
using Catch::Contains;
using optimizer::OptimizerKind;

constexpr uint32_t kChunkBytes = 4096;  // 1024 elements of f32
const std::atomic<bool> kGoesOn = false;

class Folder {
 public:
  Folder() {
    std::string name = fs::temp_directory_path() / "pbox-snapshot-files-XXXXXX";
    REQUIRE(mkdtemp(name.data()) != nullptr);
    path = name;
  }
  ~Folder() { fs::remove_all(path); }
  std::string path;
};

PartHead head_of(uint32_t part, uint32_t parts, std::vector<Tensor> tensors) {
  return {.job = "bert/large",
          .part = part,
          .parts = parts,
          .chunk_bytes = kChunkBytes,
          .optimizer = OptimizerKind::kMomentum,
          .tensors = std::move(tensors)};
}

// A shard as a job has it, whose values encode their place in the job.
struct Part {
  PartHead head;
  std::unique_ptr<pipeline::JobShard> shard;
  Cuts cuts;
};

float weight_of(const std::string& tensor, uint64_t element) {
  return static_cast<float>(tensor[0]) + static_cast<float>(element) / 1e4f;
}

Part make_part(PartHead head) {
  Part part;
  pipeline::ShardSpec spec;
  spec.mode = pipeline::Mode::kOptimize;
  spec.optimizer.kind = head.optimizer;
  spec.sessions.push_back({1, 4096});
  const PlacedChunks chunks = chunks_of(head);
  spec.job_chunk_count = static_cast<uint32_t>(chunks.size());
  for (const auto& [place, chunk] : chunks) {
    spec.chunks.push_back({.chunk = chunk.chunk, .elements = chunk.elements});
  }
  part.shard = std::move(*pipeline::JobShard::create(spec));
  for (const auto& [place, placed] : chunks) {
    pipeline::Chunk& chunk = *part.shard->find(placed.chunk);
    chunk.rounds_finished = 10;
    for (uint32_t index = 0; index < chunk.elements; ++index) {
      chunk.weights[index] = weight_of(place.first, place.second * 1024 + index);
      chunk.optimizer_state[index] = -chunk.weights[index];
    }
  }
  auto cut = std::move(*pipeline::StateCut::create(*part.shard, 10));
  cut->copy_resting(*part.shard);
  REQUIRE(cut->copied() == cut->chunk_count());
  part.cuts = {std::move(cut)};
  part.head = std::move(head);
  return part;
}

PartFile write(const Folder& folder, uint64_t number, const Part& part) {
  const std::string name = part_name(part.head);
  auto file = write_part(number_folder(folder.path, part.head.job, number) + "/" + name, part.head,
                         part.cuts, kGoesOn);
  REQUIRE(file);
  file->name = name;
  file->box = std::string("a");
  return *file;
}

// Writes a snapshot of a job in two parts that share one tensor. Returns its manifest.
Manifest write_all(const Folder& folder) {
  const uint64_t number = *make_next(folder.path, "bert/large");
  Manifest manifest{.job = "bert/large",
                    .number = number,
                    .steps = 100 * number,
                    .taken_at = "2026-01-01T00:00:00Z",
                    .ranks = {10 * number, UINT64_MAX - number},
                    .parts = {}};
  const auto first = make_part(head_of(0, 2, {{"a", 0, 2048}, {"b", 0, 1024}}));
  const auto second = make_part(head_of(1, 2, {{"b", 1024, 1500}}));
  manifest.parts = {write(folder, number, first), write(folder, number, second)};
  REQUIRE(finish(folder.path, manifest));
  return manifest;
}

Result<Restored> load_all(const Folder& folder, const PartHead& head,
                          const std::string& which = "latest") {
  return load(folder.path, head, {.which = which}, kGoesOn);
}

void check(const Restored& restored, const PartHead& head) {
  const PlacedChunks chunks = chunks_of(head);
  REQUIRE(restored.chunks.size() == chunks.size());
  for (const auto& [place, placed] : chunks) {
    const auto found =
        std::find_if(restored.chunks.begin(), restored.chunks.end(),
                     [chunk = placed.chunk](const auto& one) { return one.chunk == chunk; });
    REQUIRE(found != restored.chunks.end());
    REQUIRE(found->values.size() == 2 * placed.elements);
    CHECK(found->steps == 9);
    const uint64_t last = place.second * 1024 + placed.elements - 1;
    CHECK(found->values[placed.elements - 1] == weight_of(place.first, last));
    CHECK(found->values[2 * placed.elements - 1] == -weight_of(place.first, last));
  }
}

}  // namespace

TEST_CASE("a snapshot is read back by its parts, and by other parts of the same job") {
  const Folder folder;
  write_all(folder);
  const std::vector<PartHead> heads = {
      head_of(0, 2, {{"a", 0, 2048}, {"b", 0, 1024}}), head_of(1, 2, {{"b", 1024, 1500}}),
      head_of(0, 1, {{"a", 0, 2048}, {"b", 0, 2524}}), head_of(2, 3, {{"b", 2048, 476}})};
  for (const PartHead& head : heads) {
    const auto restored = load_all(folder, head);
    REQUIRE(restored);
    CHECK(restored->number == 1);
    CHECK(restored->steps == 100);
    check(*restored, head);
  }
}

TEST_CASE(
    "the last snapshot of a run is found by its ranks, or as the one that the run started from") {
  const Folder folder;
  for (int count = 0; count < 2; ++count) write_all(folder);
  const auto found = [&](const std::vector<uint64_t>& ranks, uint64_t begun_with = 0) {
    const auto restored = load(folder.path, head_of(1, 2, {{"b", 1024, 1500}}),
                               {.ranks = ranks, .begun_with = begun_with}, kGoesOn);
    REQUIRE(restored);
    return restored->number;
  };
  CHECK(found({}) == 2);
  CHECK(found({5, 20}) == 2);
  CHECK(found({10}) == 1);
  CHECK(found({10, UINT64_MAX - 2}) == 2);
  CHECK(found({5}) == 0);
  CHECK(found({5}, 1) == 1);
  CHECK(found({UINT64_MAX - 2}, 1) == 2);
}

TEST_CASE("jobs and tensors that do not match are refused with the reason") {
  const Folder folder;
  write_all(folder);
  const auto says = [&](const PartHead& head, const std::string& which = "latest") {
    const auto restored = load_all(folder, head, which);
    return restored ? std::string("nothing is wrong") : restored.error().message;
  };
  CHECK_THAT(says(head_of(0, 1, {{"c", 0, 10}})), Contains("does not contain tensor 'c'"));
  for (const uint64_t size : {2049, 2047, 1024}) {  // the last has only whole chunks
    INFO(size);
    CHECK_THAT(says(head_of(0, 1, {{"a", 0, size}})),
               Contains("tensor 'a' has 2048 elements in snapshot 1") &&
                   Contains("but " + std::to_string(size) + " in this job") &&
                   Contains("without restore"));
  }
  CHECK_THAT(says(head_of(1, 2, {{"b", 1024, 1024}})), Contains("tensor 'b' has 2524 elements"));
  CHECK_THAT(says(head_of(0, 1, {{"a", 0, 2048, wire::Dtype::kF16}})), Contains("has dtype f32"));
  PartHead other = head_of(0, 1, {{"a", 0, 2048}});
  other.chunk_bytes = 8192;
  CHECK_THAT(says(other), Contains("chunk_bytes = 4096"));
  other = head_of(0, 1, {{"a", 0, 2048}});
  other.optimizer = OptimizerKind::kAdam;
  CHECK_THAT(says(other), Contains("optimizer"));
  CHECK_THAT(says(head_of(0, 1, {{"a", 0, 2048}}), "2"), Contains("there are 1"));
  other.job = std::string("gpt");
  CHECK(load_all(folder, other)->number == 0);  // the job has no snapshot yet
  CHECK_THAT(says(other, "1"), Contains("has no snapshots"));
}

TEST_CASE("a file that has no chunk of the part is read no further than its head") {
  const Folder folder;
  const Manifest manifest = write_all(folder);
  const std::string other =
      number_folder(folder.path, manifest.job, 1) + "/" + manifest.parts[0].name;
  fs::resize_file(other, manifest.parts[0].bytes - 4096);
  const PartHead head = head_of(1, 2, {{"b", 1024, 1500}});
  const auto restored = load_all(folder, head);
  REQUIRE(restored);
  check(*restored, head);
  CHECK_FALSE(load_all(folder, head_of(0, 2, {{"a", 0, 2048}, {"b", 0, 1024}})));
}

TEST_CASE("a change of any byte is detected, and so is a truncated or missing file") {
  const Folder folder;
  const Manifest manifest = write_all(folder);
  CHECK(verify(folder.path, manifest));
  const PartHead head = head_of(0, 2, {{"a", 0, 2048}, {"b", 0, 1024}});
  const std::string path = number_folder(folder.path, head.job, 1) + "/" + manifest.parts[0].name;
  const auto bytes = manifest.parts[0].bytes;
  for (const uint64_t at : {uint64_t{0}, uint64_t{9}, uint64_t{20}, bytes / 2, bytes - 1}) {
    std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
    file.seekg(static_cast<std::streamoff>(at));
    const char before = static_cast<char>(file.get());
    file.seekp(static_cast<std::streamoff>(at));
    file.put(static_cast<char>(before ^ 0x20));
    file.close();
    INFO(at);
    CHECK_FALSE(verify(folder.path, manifest));
    CHECK_FALSE(load_all(folder, head));
    file.open(path, std::ios::in | std::ios::out | std::ios::binary);
    file.seekp(static_cast<std::streamoff>(at));
    file.put(before);
  }
  CHECK(load_all(folder, head));
  fs::resize_file(path, bytes - 1);
  CHECK_FALSE(load_all(folder, head));
  CHECK_THAT(verify(folder.path, manifest).error().message, Contains("truncated"));
  fs::remove(path);
  CHECK_FALSE(load_all(folder, head));
  std::ofstream(number_folder(folder.path, head.job, 1) + "/manifest.json") << "{";
  CHECK_THAT(load_all(folder, head).error().message, Contains("is damaged"));
}

TEST_CASE("a head with any byte changed is not used") {
  const Folder folder;
  const Manifest manifest = write_all(folder);
  const PartHead head = head_of(0, 2, {{"a", 0, 2048}, {"b", 0, 1024}});
  const std::string path = number_folder(folder.path, head.job, 1) + "/" + manifest.parts[0].name;
  for (std::streamoff at = 0; at < 400; ++at) {
    std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
    file.seekg(at);
    const char before = static_cast<char>(file.get());
    for (const char other : {'9', '\0', ','}) {
      if (other == before) continue;
      file.seekp(at);
      file.put(other).flush();
      INFO(at << " " << static_cast<int>(other));
      CHECK_FALSE(load_all(folder, head));
    }
    file.seekp(at);
    file.put(before);
  }
  CHECK(load_all(folder, head));
}

TEST_CASE("the last two snapshots are kept, and one that was never completed does not count") {
  const Folder folder;
  write_all(folder);
  CHECK(*make_next(folder.path, "bert/large") == 2);  // never completed
  write_all(folder);
  std::vector<Error> damaged;
  CHECK(list(folder.path, "bert/large", damaged).size() == 2);
  CHECK_FALSE(fs::exists(number_folder(folder.path, "bert/large", 2)));
  write_all(folder);
  const auto kept = list(folder.path, "bert/large", damaged);
  REQUIRE(kept.size() == 2);
  CHECK(kept[0].number == 3);
  CHECK(kept[1].number == 4);
  CHECK(jobs(folder.path) == std::vector<std::string>{"bert/large"});
  Manifest missing = kept[1];
  missing.number = *make_next(folder.path, "bert/large");
  CHECK_THAT(finish(folder.path, missing).error().message, Contains("storage that all"));
  CHECK(load_all(folder, head_of(0, 1, {{"a", 0, 2048}}))->number == 4);
}

TEST_CASE("a snapshot of a tenant is for that tenant, and for ranks without keys") {
  const Folder folder;
  Manifest manifest = write_all(folder);
  const PartHead head = head_of(0, 2, {{"a", 0, 2048}, {"b", 0, 1024}});
  const auto restore = [&](const std::string& tenant, const std::string& which = "latest") {
    return load(folder.path, head, {.which = which, .tenant = tenant}, kGoesOn);
  };
  CHECK(restore("acme").ok());  // taken by ranks without keys
  manifest.tenant = "acme";
  REQUIRE(finish(folder.path, manifest));
  std::vector<Error> damaged;
  CHECK(list(folder.path, head.job, damaged).at(0).tenant == "acme");
  CHECK(restore("acme").ok());
  CHECK(restore("").ok());
  for (const char* which : {"latest", "1"}) {
    const auto refused = restore("other", which);
    REQUIRE_FALSE(refused.ok());
    CHECK(refused.error().code == ErrorCode::kMismatch);
    CHECK_THAT(refused.error().message,
               Contains("of tenant 'acme'") && Contains("of tenant 'other'"));
  }
}

TEST_CASE("a damaged manifest matters only to those who ask for it, or if it is the newest") {
  const Folder folder;
  const PartHead head = head_of(0, 1, {{"a", 0, 2048}});
  const auto damage = [&](uint64_t number) {
    std::ofstream(number_folder(folder.path, head.job, number) + "/manifest.json") << "{";
  };
  write_all(folder);
  write_all(folder);
  damage(1);
  CHECK(load_all(folder, head)->number == 2);
  write_all(folder);
  damage(3);
  CHECK_THAT(load_all(folder, head).error().message, Contains("is damaged") && Contains("/3/"));
}

TEST_CASE("a manifest that cannot be opened is an error, and its snapshot is kept") {
  const Folder folder;
  const PartHead head = head_of(0, 1, {{"a", 0, 2048}});
  const auto path = [&](uint64_t number) {
    return number_folder(folder.path, head.job, number) + "/manifest.json";
  };
  for (int count = 0; count < 2; ++count) write_all(folder);
  fs::rename(path(2), path(2) + ".hidden");
  fs::create_symlink("manifest.json", path(2));  // opening it fails with ELOOP
  CHECK_THAT(load_all(folder, head).error().message, Contains("cannot read " + path(2)));
  for (int count = 0; count < 3; ++count) write_all(folder);
  std::vector<Error> damaged;
  const auto kept = list(folder.path, head.job, damaged);
  CHECK(damaged.size() == 1);
  REQUIRE(kept.size() == 2);
  CHECK(kept[0].number == 4);
  CHECK(kept[1].number == 5);
  fs::remove(path(2));
  fs::rename(path(2) + ".hidden", path(2));
  CHECK(load_all(folder, head, "2")->number == 2);
}

TEST_CASE("the files of attempts that were abandoned are removed before the next attempt") {
  const Folder folder;
  const std::string job = "bert/large";
  write_all(folder);
  const auto part = make_part(head_of(0, 2, {{"a", 0, 2048}, {"b", 0, 1024}}));
  const auto has_file = [&](uint64_t number) {
    return fs::exists(number_folder(folder.path, job, number) + "/" + part_name(part.head));
  };
  const auto age = [&](uint64_t number) {
    const std::string attempt = number_folder(folder.path, job, number);
    const auto then = fs::file_time_type::clock::now() - std::chrono::hours(1);
    for (const auto& file : fs::directory_iterator(attempt)) fs::last_write_time(file, then);
    fs::last_write_time(attempt, then);
  };
  for (uint64_t number = 2; number <= 4; ++number) {
    REQUIRE(*make_next(folder.path, job) == number);
    write(folder, number, part);
  }
  age(1);  // complete
  age(2);
  age(3);
  write(folder, 3, part);  // another box is still writing this one
  CHECK(*make_next(folder.path, job) == 5);
  CHECK(has_file(1));
  CHECK_FALSE(has_file(2));
  CHECK(has_file(3));
  CHECK(has_file(4));
}

TEST_CASE("a discarded snapshot leaves no files, and its number is not given again") {
  const Folder folder;
  const Manifest whole = write_all(folder);
  const auto part = make_part(head_of(0, 2, {{"a", 0, 2048}, {"b", 0, 1024}}));
  REQUIRE(*make_next(folder.path, whole.job) == 2);
  write(folder, 2, part);
  for (const uint64_t number : {1, 2, 3}) discard(folder.path, whole.job, number);
  CHECK(verify(folder.path, whole));  // a complete one stays
  CHECK(fs::is_empty(number_folder(folder.path, whole.job, 2)));
  CHECK(*make_next(folder.path, whole.job) == 3);
}

TEST_CASE("a folder that cannot be read is an error, not an empty one") {
  const Folder folder;
  const PartHead head = head_of(0, 1, {{"a", 0, 2048}});
  CHECK(load_all(folder, head)->number == 0);  // there is no folder of the job yet
  std::ofstream(job_folder(folder.path, head.job)) << "not a folder";
  CHECK_THAT(load_all(folder, head).error().message, Contains("cannot read the folder"));
  std::vector<Error> damaged;
  CHECK(list(folder.path, head.job, damaged).empty());
  CHECK(damaged.size() == 1);
  CHECK(jobs(folder.path).empty());
}

TEST_CASE("every job name becomes a valid folder name") {
  CHECK(job_folder("/s", "bert-3.1_x") == "/s/bert-3.1_x");
  CHECK(job_folder("/s", "../a") == "/s/%2E.%2Fa");
  CHECK(job_folder("/s", ".") == "/s/%2E");
  CHECK(job_folder("/s", "50%") == "/s/50%25");
}

TEST_CASE("a store answers on its context, and abandons its writes when it is destroyed") {
  const Folder folder;
  boost::asio::io_context context;
  int flushed = 0;
  std::optional<Result<uint64_t>> number;
  std::optional<Result<Restored>> restored;
  {
    DiskSnapshotStore shelf(context, folder.path, [&] { ++flushed; });
    const auto guard = boost::asio::make_work_guard(context);
    shelf.begin("bert/large", [&](auto answer) { number = answer; });
    while (!number) context.run_one();
    CHECK(**number == 1);
    shelf.load(head_of(0, 1, {{"a", 0, 2048}}), {},
               [&](auto answer) { restored = std::move(answer); });
    while (!restored) context.run_one();
    CHECK((*restored)->number == 0);
    CHECK(flushed == 2);
    shelf.begin("bert/large", [&](auto) { FAIL("the callback ran after its store was gone"); });
  }
  context.restart();
  context.poll();
  CHECK(flushed == 2);
}

}  // namespace pbox::snapshot
