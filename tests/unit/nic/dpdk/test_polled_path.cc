// In steady state the polled path must not make system calls, allocate or lock. The test watches
// the polling thread with a seccomp filter that traps every system call, and with counting
// replacements of the functions of malloc and the mutex.
#include <dlfcn.h>
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <pthread.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <catch2/catch.hpp>
#include <cstddef>
#include <cstdlib>
#include <new>
#include <thread>

#include "nic/dpdk/eal.h"
#include "pipeline/loop.h"
#include "tests/unit/nic/dpdk/cable.h"

namespace {

thread_local bool is_watched = false;
std::atomic<uint64_t> allocations{0};
std::atomic<uint64_t> locks{0};
std::atomic<uint64_t> system_calls{0};

void note(std::atomic<uint64_t>& counter) {
  if (is_watched) counter.fetch_add(1);
}

void on_trapped_call(int /*signal*/) {
  note(system_calls);
}

// From now on every system call of the calling thread raises SIGSYS, except those that end the
// thread, return from the handler, or release memory.
bool forbid_system_calls() {
  void* volatile first = std::malloc(1);  // creates the thread's own arena of the heap
  std::free(first);
  struct sigaction action {};
  action.sa_handler = on_trapped_call;
  sigaction(SIGSYS, &action, nullptr);
  const auto allow = [](int number, uint8_t skip) {
    return sock_filter BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, static_cast<uint32_t>(number), skip, 0);
  };
  sock_filter filter[] = {
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
      allow(SYS_rt_sigreturn, 5),
      allow(SYS_exit, 4),
      allow(SYS_futex, 3),  // for pthread_join and the end of the test
      allow(SYS_munmap, 2),
      allow(SYS_madvise, 1),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_TRAP),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
  };
  const sock_fprog program{sizeof(filter) / sizeof(filter[0]), filter};
  return prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 &&
         prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0;
}

}  // namespace

void* operator new(size_t bytes) {
  note(allocations);
  if (void* memory = std::malloc(bytes)) return memory;
  throw std::bad_alloc();
}
void operator delete(void* memory) noexcept {
  note(allocations);
  std::free(memory);
}
void operator delete(void* memory, size_t /*bytes*/) noexcept {
  note(allocations);
  std::free(memory);
}

extern "C" int pthread_mutex_lock(pthread_mutex_t* mutex) {
  using Function = int (*)(pthread_mutex_t*);
  static const auto real = reinterpret_cast<Function>(dlsym(RTLD_NEXT, "pthread_mutex_lock"));
  note(locks);
  return real(mutex);
}

namespace pbox::test {
namespace {

constexpr uint32_t kWorkers = 2;
constexpr uint32_t kElements = 8 * 1024;
constexpr uint32_t kRounds = 50;

pipeline::ShardSpec one_chunk() {
  pipeline::ShardSpec spec;
  spec.fragment_bytes = limits::kFragmentBytesJumbo;
  spec.job_chunk_count = 1;
  pipeline::ChunkSpec chunk;
  chunk.elements = kElements;
  spec.chunks = {chunk};
  for (uint32_t worker = 0; worker < kWorkers; ++worker)
    spec.sessions.push_back({worker, 1u << 20});
  return spec;
}

// Pushes whole rounds of ones through the port and waits for the results, on the same thread as the
// box. Returns whether every sum was right.
class Workers {
 public:
  Workers(nic::DpdkPort& port, const nic::Endpoint& box) : port_(port), box_(box) {
    ones_.fill(1.0f);
  }
  void push(uint32_t round) {
    constexpr uint32_t kFragments = kElements * 4 / limits::kFragmentBytesJumbo;
    for (uint32_t worker = 0; worker < kWorkers; ++worker) {
      for (uint32_t fragment = 0; fragment < kFragments; ++fragment) {
        nic::TxPacket packet;
        packet.to = &box_;
        packet.header.set_type(wire::PacketType::kPush);
        packet.header.spi = worker;
        packet.header.packet_number = ++packet_number_;
        packet.header.epoch = packet.header.generation = 1;
        packet.header.round = round;
        packet.header.fragment = static_cast<uint16_t>(fragment);
        packet.header.payload_bytes = limits::kFragmentBytesJumbo;
        packet.payload = reinterpret_cast<const std::byte*>(ones_.data());
        packet.tag = wire::make_tag({}, packet.header, packet.payload);
        port_.tx_burst({&packet, 1});
      }
    }
  }
  uint32_t receive() {
    const size_t count = port_.rx_burst(burst_);
    uint32_t right = 0;
    for (size_t index = 0; index < count; ++index) {
      float first = 0;
      std::memcpy(&first, burst_[index].data + limits::kHeaderBytes, sizeof(first));
      right += first == float(kWorkers) ? 1 : 0;
    }
    return right;
  }

 private:
  nic::DpdkPort& port_;
  nic::Endpoint box_;
  uint64_t packet_number_ = 0;
  std::array<float, limits::kFragmentBytesJumbo / 4> ones_;
  std::array<nic::RxPacket, limits::kBurstPackets> burst_;
};

}  // namespace

TEST_CASE("in steady state the polled path makes no system calls, allocations or locks") {
  Cable cable(1);
  const auto box_interface = open_interface(options_for(cable.left(), "10.7.0.1/24", 1));
  const auto load_interface = open_interface(options_for(cable.right(), "10.7.0.2/24", 1));
  auto shard = pipeline::JobShard::create(one_chunk());
  REQUIRE(shard);
  nic::DpdkPort box(*box_interface, 0);
  nic::DpdkPort load(*load_interface, 0);
  REQUIRE(box.add_memory((*shard)->arena().data(), (*shard)->arena().size()));
  pipeline::Engine core({.pipeline_index = 0, .tag = {}});
  pipeline::Mailbox mailbox;
  pipeline::Loop<nic::DpdkPort> loop(core, box, mailbox, {.busy = true});
  core.execute({.kind = pipeline::CommandKind::kInstall, .shard = shard->get()});

  uint64_t results = 0;
  bool is_filtered = false;
  std::thread poller([&] {
    const nic::DpdkThread registered;
    Workers workers(load, box.local());
    const auto run_round = [&](uint32_t round) {
      workers.push(round);
      for (int turn = 0; turn < 8; ++turn) {
        loop.turn(monotonic_ns());
        results += workers.receive();
      }
    };
    // Warms up neighbours (ARP replaces the first packets each way), memory and per-thread caches.
    while (results == 0) run_round(0);
    for (uint32_t round = 1; round < 4; ++round) run_round(round);
    results = 0;
    is_filtered = forbid_system_calls();
    is_watched = true;
    for (uint32_t round = 4; round < 4 + kRounds; ++round) run_round(round);
    is_watched = false;
  });
  poller.join();
  REQUIRE(is_filtered);
  CHECK(results == kRounds * kWorkers * (kElements * 4 / limits::kFragmentBytesJumbo));
  CHECK(system_calls.load() == 0);
  CHECK(allocations.load() == 0);
  CHECK(locks.load() == 0);
  core.execute({.kind = pipeline::CommandKind::kRemove, .shard = shard->get()});
  std::array<nic::RxPacket, 1> none;
  load.rx_burst(none);
  CHECK(box.remove_memory((*shard)->arena().data(), (*shard)->arena().size()));
}

TEST_CASE("the watch detects a system call, an allocation and a lock") {
  uint64_t calls_before = system_calls.load();
  bool is_filtered = false;
  std::thread guilty([&] {
    pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
    is_filtered = forbid_system_calls();
    is_watched = true;
    syscall(SYS_getppid);
    delete new int(7);
    pthread_mutex_lock(&mutex);
    is_watched = false;
    pthread_mutex_unlock(&mutex);
  });
  guilty.join();
  REQUIRE(is_filtered);
  CHECK(system_calls.load() == calls_before + 1);
  CHECK(allocations.load() > 0);
  CHECK(locks.load() > 0);
}

}  // namespace pbox::test
