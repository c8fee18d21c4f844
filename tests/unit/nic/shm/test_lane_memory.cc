// Payloads that stay in the memory of a worker or of the box.
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <cerrno>
#include <optional>
#include <string>

#include "tests/unit/nic/shm/lane_worker.h"

namespace pbox::nic {
namespace {

// Memory that a worker shows the box.
struct WorkerMemory {
  Descriptor file;
  Mapping mapping;

  explicit WorkerMemory(size_t bytes) : file(std::move(*make_memory_file("pbox-test", bytes))) {
    void* const place = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file.get(), 0);
    REQUIRE(place != MAP_FAILED);
    mapping = Mapping(static_cast<std::byte*>(place), bytes);
    REQUIRE(seal_memory_file(file).ok());
  }
};

NumaArena readable_arena() {
  auto arena = NumaArena::create(1 << 20, kAnyNumaNode, Hugepages::kIfFree, Sharing::kReadable);
  REQUIRE(arena.ok());
  return std::move(*arena);
}

constexpr int kMayNotChangeUser = -1;

// Opens the file once more for writing, in a child that is another user's. Returns the error of
// open(), 0 if it succeeds.
int error_of_reopening_as_nobody(const Descriptor& file) {
  constexpr uid_t kNobody = 65'534;
  const std::string path = "/proc/self/fd/" + std::to_string(file.get());
  if (geteuid() != 0) return kMayNotChangeUser;
  const pid_t child = fork();
  REQUIRE(child >= 0);
  if (child == 0) {
    // A process that has changed its user may not look into its own /proc until it is dumpable.
    if (setgid(kNobody) != 0 || setuid(kNobody) != 0 || prctl(PR_SET_DUMPABLE, 1) != 0) _exit(255);
    if (access(path.c_str(), F_OK) != 0) _exit(255);
    _exit(open(path.c_str(), O_RDWR | O_CLOEXEC) < 0 ? errno : 0);
  }
  int status = 0;
  REQUIRE(waitpid(child, &status, 0) == child);
  REQUIRE(WIFEXITED(status));
  return WEXITSTATUS(status) == 255 ? kMayNotChangeUser : WEXITSTATUS(status);
}

}  // namespace

TEST_CASE("payloads in the worker's memory stay there, also beside others") {
  ShmPort box = open_box();
  const WorkerMemory memory(1 << 20);
  LaneWorker worker(box, 1, {.spi = kLaneSpi, .memory_bytes_max = 1 << 20}, &memory.file,
                    memory.mapping.size());
  REQUIRE(worker.is_memory_read);
  const LanePayload before(1, 8192), after(3, 100);
  LanePayload shared(2, 8192);
  std::memcpy(memory.mapping.data() + 12'345, shared.bytes.data(), shared.bytes.size());
  worker.send(before);
  REQUIRE(worker.writer.put_place(shared.packet, 12'345));
  worker.send(after);
  LaneBurst burst;
  REQUIRE(box.rx_burst(burst) == 3);
  CHECK((bytes_of(burst[0]) == before.on_wire()));
  CHECK((bytes_of(burst[1]) == shared.on_wire()));
  CHECK((bytes_of(burst[2]) == after.on_wire()));
  memory.mapping.data()[12'345] ^= std::byte{1};
  CHECK(burst[1].payload[0] == memory.mapping.data()[12'345]);
}

TEST_CASE("small payloads and rows in the worker's memory are copied") {
  ShmPort box = open_box();
  const WorkerMemory memory(1 << 20);
  LaneWorker worker(box, 1, {.spi = kLaneSpi, .memory_bytes_max = 1 << 20}, &memory.file,
                    memory.mapping.size());
  const LanePayload small(1, 512), rows(2, 8192, kLaneSpi, wire::flag::kRows);
  for (const LanePayload* payload : {&small, &rows}) {
    std::memcpy(memory.mapping.data(), payload->bytes.data(), payload->bytes.size());
    REQUIRE(worker.writer.put_place(payload->packet, 0));
    worker.writer.publish();
    LaneBurst burst;
    REQUIRE(box.rx_burst(burst) == 1);
    std::memset(memory.mapping.data(), 0xee, 8192);
    CHECK((bytes_of(burst[0]) == payload->on_wire()));
  }
}

TEST_CASE("a worker that names memory beyond its own loses its lane") {
  const WorkerMemory memory(1 << 20);
  const uint64_t end = memory.mapping.size();
  LanePayload payload(1, 8192);
  for (const uint64_t offset :
       {end - 8191, end, end + 1, uint64_t{1} << 40, UINT64_MAX, UINT64_MAX - 8191}) {
    ShmPort box = open_box();
    LaneWorker worker(box, 1, {.spi = kLaneSpi, .memory_bytes_max = end}, &memory.file, end);
    REQUIRE(worker.writer.put_place(payload.packet, end - 8192));
    worker.writer.publish();
    LaneBurst burst;
    CHECK(box.rx_burst(burst) == 1);
    REQUIRE(worker.writer.put_place(payload.packet, offset));
    worker.writer.publish();
    CHECK(box.rx_burst(burst) == 0);
    CHECK(box.counters().get(PortCounter::kLanesBroken) == 1);
    CHECK(worker.sees_the_end());
  }
  // A worker that shows no memory loses its lane for such a packet, too.
  ShmPort box = open_box();
  LaneWorker worker(box, 1);
  REQUIRE(worker.writer.put_place(payload.packet, 0));
  worker.writer.publish();
  LaneBurst burst;
  CHECK(box.rx_burst(burst) == 0);
  CHECK(worker.sees_the_end());
}

TEST_CASE("memory that is larger than the job allows is not read, and the lane works") {
  ShmPort box = open_box();
  const WorkerMemory memory(1 << 20);
  LaneWorker worker(box, 1, {.spi = kLaneSpi, .memory_bytes_max = (1 << 20) - 1}, &memory.file,
                    memory.mapping.size());
  CHECK_FALSE(worker.is_memory_read);
  const LanePayload payload(1, 8192);
  worker.send(payload);
  CHECK((take_packets(box, 1).bytes[0] == payload.on_wire()));
}

TEST_CASE("memory that could shrink under the box is refused") {
  ShmPort box = open_box();
  const auto file = make_memory_file("pbox-test", 1 << 20);
  REQUIRE(file.ok());
  const OwnSegment segment = std::move(*OwnSegment::make(kRingBytesMin));
  SeqpacketPair sockets;
  ReceivedHello hello = hello_with(segment);
  hello.hello.memory_bytes = 1 << 20;
  hello.memory = Descriptor(dup(file->get()));
  const Status attached =
      box.attach(1, {.spi = kLaneSpi, .memory_bytes_max = 1 << 20}, hello, sockets.box);
  REQUIRE_FALSE(attached.ok());
  CHECK(attached.error().message.find("the worker's memory may shrink") == 0);
  CHECK(sockets.box.ok());
}

TEST_CASE("a first result stays in the box's memory, and all else is copied") {
  ShmPort box = open_box();
  NumaArena arena = readable_arena();
  LaneWorker worker(box, 1, {.spi = kLaneSpi, .results = &arena});
  REQUIRE(worker.results.size() == arena.size());
  const Endpoint to = endpoint_of(box, worker);
  struct Sent {
    wire::PacketType type;
    uint8_t flags;
    uint32_t bytes;
    bool stays;
  };
  const Sent kinds[] = {{wire::PacketType::kResult, 0, 8192, true},
                        {wire::PacketType::kResult, wire::flag::kLast, 513, true},
                        {wire::PacketType::kResult, 0, 512, false},
                        {wire::PacketType::kResult, wire::flag::kRetransmission, 8192, false},
                        {wire::PacketType::kZeros, 0, 8192, false},
                        {wire::PacketType::kStatus, 0, 8192, false}};
  for (const Sent& kind : kinds) {
    LanePayload payload(7, kind.bytes, kLaneSpi, kind.flags);
    payload.packet.header.set_type(kind.type);
    std::byte* const place = arena.data() + arena.size() - kind.bytes;
    std::memcpy(place, payload.bytes.data(), kind.bytes);
    payload.packet.payload = place;
    REQUIRE(box.tx_burst(addressed({&payload}, {&to})) == 1);
    std::vector<std::byte> expected = payload.on_wire();
    CHECK((worker.receive() == expected));
    CHECK(worker.was_in_place == kind.stays);
  }
  // A result that only begins in the memory, or is elsewhere.
  const LanePayload elsewhere(1, 8192);
  REQUIRE(box.tx_burst(addressed({&elsewhere}, {&to})) == 1);
  CHECK((worker.receive() == elsewhere.on_wire()));
  CHECK_FALSE(worker.was_in_place);
}

TEST_CASE("a worker can neither cut the box's memory nor open it for writing") {
  ShmPort box = open_box();
  NumaArena arena = readable_arena();
  arena.data()[0] = std::byte{42};
  const LaneWorker worker(box, 1, {.spi = kLaneSpi, .results = &arena});
  CHECK(ftruncate(worker.results_file.get(), 0) == -1);
  CHECK(ftruncate(worker.results_file.get(), static_cast<off_t>(2 * arena.size())) == -1);
  const int error = error_of_reopening_as_nobody(worker.results_file);
  if (error != kMayNotChangeUser) CHECK(error == EACCES);
  CHECK(worker.results.data()[0] == std::byte{42});
}

TEST_CASE("the box's memory is kept until the workers that read it have gone") {
  ShmPort box = open_box();
  NumaArena arena = readable_arena();
  arena.data()[0] = std::byte{42};
  std::optional<LaneWorker> one, two;
  one.emplace(box, 1, LaneGrant{.spi = kLaneSpi, .results = &arena});
  two.emplace(box, 2, LaneGrant{.spi = kLaneSpi, .results = &arena});
  CHECK_FALSE(box.remove_memory(arena.data(), arena.size()));
  one.reset();
  CHECK_FALSE(box.remove_memory(arena.data(), arena.size()));
  CHECK(two->results.data()[0] == std::byte{42});
  // The box closes its end: the worker may still be reading.
  CHECK(box.close(2));
  LaneBurst burst;
  CHECK(box.rx_burst(burst) == 0);
  CHECK(box.reap() == 0);
  CHECK(two->sees_the_end());
  CHECK_FALSE(box.remove_memory(arena.data(), arena.size()));
  CHECK(two->results.data()[0] == std::byte{42});
  two.reset();
  CHECK(box.remove_memory(arena.data(), arena.size()));
  CHECK(lseek(arena.file().get(), 0, SEEK_END) == 0);  // no process can keep its pages
  CHECK(box.remove_memory(arena.data(), arena.size()));
}

}  // namespace pbox::nic
