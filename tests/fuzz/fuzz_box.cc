// Drives the protocol core of a pipeline by any sequence of packets, sends, commands and times.
// After each it checks that every packet is counted once, that only fragments that may count are
// aggregated, that sums equal an independent oracle's, and that nothing is allocated.
//
// Input: two shapes of jobs (box_jobs.h), then operations (see BoxDriver::run).
#include <array>
#include <memory>
#include <optional>
#include <vector>

#include "base/check.h"
#include "pipeline/engine.h"
#include "tests/fuzz/allocation_count.h"
#include "tests/fuzz/box_oracle.h"
#include "tests/fuzz/box_slots.h"
#include "tests/fuzz/input.h"
#include "tests/support/packet_verdicts.h"

namespace pbox::fuzz {
namespace {

using pipeline::Counter;

constexpr wire::TagPolicy kTag{.payload_crc = true};
constexpr uint32_t kCreditBytes = 4096;

class BoxDriver {
 public:
  explicit BoxDriver(Input& input) : input_(input) {
    for (uint32_t job = 0; job < jobs_.size(); ++job) {
      jobs_[job].shape = read_shape(input, job);
      install(jobs_[job]);
    }
  }

  ~BoxDriver() {
    for (Job& job : jobs_) remove(job);
  }

  // Each operation is a byte: its kind in the low four bits, its job in the highest bit, a variant
  // in the bits between.
  void run() {
    while (!input_.empty()) {
      const uint8_t operation = input_.byte();
      Job& job = jobs_[operation >> 7];
      switch (operation & 15) {
        case 0:
        case 1:
        case 2: deliver(sealed(push(job, (operation & 32) != 0))); break;
        case 3:
        case 4: push_round(job); break;
        case 5: deliver(sealed((operation & 64) != 0 ? zeros(job) : pull(job))); break;
        case 6: deliver(damaged(job)); break;
        case 7: deliver(input_.bytes(input_.byte())); break;
        case 8:
        case 9: send(input_.byte()); break;
        case 10: send(UINT32_MAX); break;
        case 11: pass_time(); break;
        case 12: (operation & 16) != 0 ? change_members(job) : command(job); break;
        case 13: repeat(job); break;
        case 14: reinstall(job); break;
        default: push_chunk(job, choose_place(job)); break;
      }
    }
    for (uint32_t turns = 0; send(UINT32_MAX) > 0; ++turns) PBOX_CHECK(turns < kTurnsMax);
    for (const Job& job : jobs_) {
      if (!packets_lost_) job.oracle->check_all_answered();
    }
  }

 private:
  // All queued resends, each of a whole chunk, and all fan-outs fit into this many bursts.
  static constexpr uint32_t kTurnsMax = 4096;

  struct Job {
    JobShape shape;
    std::unique_ptr<pipeline::JobShard> shard;
    std::optional<BoxOracle> oracle;
  };

  void install(Job& job) {
    job.shape.absent = {};
    auto shard = pipeline::JobShard::create(spec_of(job.shape, kCreditBytes));
    PBOX_CHECK(shard.ok());
    job.shard = std::move(*shard);
    job.oracle.emplace(job.shape);
    engine_.execute({.kind = pipeline::CommandKind::kInstall, .shard = job.shard.get()});
  }

  void remove(Job& job) {
    packets_lost_ = true;
    engine_.execute({.kind = pipeline::CommandKind::kRemove, .shard = job.shard.get()});
    job.shard.reset();  // so that the sanitizer sees any later access
  }

  void reinstall(Job& job) {
    finished_before_ += job.oracle->rounds_finished();
    remove(job);
    install(job);
  }

  Place choose_place(const Job& job) {
    const uint8_t choice = input_.byte();
    Place place;
    place.rank = (choice & 3u) % job.shape.workers;
    place.chunk = (choice >> 2 & 3u) % (job.shape.chunks + 1);
    place.fragment = (choice >> 4 & 3u) % job.shape.fragments();
    if (place.chunk < job.shape.chunks) {
      place.round = job.oracle->next_round(place.chunk, place.rank);
    }
    if (choice >> 6 == 1) --place.round;  // done already; before round 0, far in the future
    if (choice >> 6 == 2) place.round -= 2;
    return place;
  }

  std::vector<std::byte> push(Job& job, bool gives_copy = false) {
    const Place place = choose_place(job);  // first: arguments are evaluated in any order
    auto packet = push_packet(job.shape, place, next_number_++, input_.byte());
    if (!gives_copy) return packet;
    wire::Header header;
    std::memcpy(&header, packet.data(), sizeof(header));
    header.set_type(wire::PacketType::kState);
    const uint8_t contributors = job.shape.is_collective ? UINT8_MAX : input_.byte();
    if (contributors < 4) {
      header.flags |= wire::flag::kPartial;
      header.dtype_scale = static_cast<uint16_t>(header.dtype_scale | contributors << 4);
    }
    std::memcpy(packet.data(), &header, sizeof(header));
    return packet;
  }

  std::vector<std::byte> pull(Job& job) {
    const Place place = choose_place(job);
    return pull_packet(job.shape, place, next_number_++, input_.byte());
  }

  // Most masks name only fragments that the chunk has.
  std::vector<std::byte> zeros(Job& job) {
    const Place place = choose_place(job);
    const uint8_t mask = input_.byte();
    const bool fits = (mask & 128) == 0;
    return zeros_packet(job.shape, place, next_number_++,
                        fits ? mask & wire::full_mask(job.shape.fragments()) : mask);
  }

  static std::vector<std::byte> sealed(std::vector<std::byte> packet) {
    append_tag(packet);
    return packet;
  }

  // Gives the packet a payload of this length, which may be wrong for its type, and states it in
  // the header.
  static void resize_payload(std::vector<std::byte>& packet, uint32_t bytes) {
    packet.resize(sizeof(wire::Header) + bytes);
    wire::Header header;
    std::memcpy(&header, packet.data(), sizeof(header));
    header.payload_bytes = static_cast<uint16_t>(bytes);
    std::memcpy(packet.data(), &header, sizeof(header));
  }

  // Returns a sound packet with a few bytes changed, before or after its tag was made.
  std::vector<std::byte> damaged(Job& job) {
    const uint8_t how = input_.byte();
    auto packet = (how & 1) != 0 ? push(job) : pull(job);
    if ((how & 64) != 0) resize_payload(packet, input_.below(32));
    if ((how & 2) != 0) append_tag(packet);
    for (uint32_t changes = 1u + (how >> 4 & 3u); changes > 0; --changes) {
      const size_t at = (how & 4) != 0 ? input_.number<uint16_t>() % packet.size()
                                       : input_.below(sizeof(wire::Header));
      packet[at] = std::byte{input_.byte()};
    }
    if ((how & 8) != 0) packet.resize(input_.number<uint16_t>() % (packet.size() + 8));
    if ((how & 2) == 0 && packet.size() >= sizeof(wire::Header)) append_tag(packet);
    return packet;
  }

  void push_chunk(Job& job, Place place) {
    const uint8_t value = input_.byte();
    const uint32_t packets = pushed_packets(job.shape, place);
    for (place.fragment = 0; place.fragment < packets; ++place.fragment) {
      deliver(sealed(push_packet(job.shape, place, next_number_++, value)));
    }
  }

  void push_round(Job& job) {
    Place place = choose_place(job);
    const bool own = job.shape.applies_on_arrival() && place.chunk < job.shape.chunks;
    for (place.rank = 0; place.rank < job.shape.workers; ++place.rank) {
      if (own) place.round = job.oracle->next_round(place.chunk, place.rank);
      push_chunk(job, place);
    }
  }

  // Delivers the same request many times, as a replay attack or a worker with a broken timer would.
  void repeat(Job& job) {
    const auto packet = sealed(pull(job));
    for (uint32_t times = input_.byte(); times > 0; --times) deliver(packet);
  }

  void command(Job& job) {
    const uint8_t value = input_.byte();
    if ((value & 1) != 0) {
      engine_.execute({.kind = pipeline::CommandKind::kSetCredit,
                       .shard = job.shard.get(),
                       .credit_bytes = value * limits::kCreditUnitBytes});
      return;
    }
    const float rate = static_cast<float>(value) / 16;
    job.oracle->set_learning_rate(rate);
    engine_.execute({.kind = pipeline::CommandKind::kSetLearningRate,
                     .shard = job.shard.get(),
                     .learning_rate = rate});
  }

  // Admits a rank again with a new session, or excludes it.
  void change_members(Job& job) {
    const uint8_t choice = input_.byte();
    const uint32_t rank = (choice & 3u) % job.shape.workers;
    const bool comes = (choice & 4) != 0 || job.oracle->awaits_copy_of(rank);
    // The job registry refuses these changes.
    if (comes ? !job.shape.is_bsp() : job.shape.is_collective) return;
    packets_lost_ = packets_lost_ || !comes;
    if (comes) ++job.shape.admissions[rank];
    if (job.shape.absent[rank] == comes) ++job.shape.generations;
    job.shape.absent[rank] = !comes;
    const size_t allocations = allocation_count();
    engine_.execute(
        {.kind = comes ? pipeline::CommandKind::kAdmit : pipeline::CommandKind::kExclude,
         .shard = job.shard.get(),
         .credit_bytes = kCreditBytes,
         .rank = rank,
         .spi = job.shape.spi(rank),
         .generation = job.shape.generation(),
         .takes_zeros = job.shape.takes_zeros});
    PBOX_CHECK(allocation_count() == allocations);
    job.oracle->somebody_excluded(now_ns_);
    for (uint32_t one = 0; one < job.shape.workers; ++one) {
      if (!job.shape.absent[one]) check_rounds(job, one);
    }
  }

  void check_rounds(Job& job, uint32_t rank) {
    std::array<uint32_t, 3> rounds{};
    engine_.execute({.kind = pipeline::CommandKind::kReportRounds,
                     .shard = job.shard.get(),
                     .rank = rank,
                     .rounds = {rounds.data(), job.shape.chunks}});
    for (uint32_t chunk = 0; chunk < job.shape.chunks; ++chunk) {
      PBOX_CHECK(rounds[chunk] == job.oracle->next_round(chunk, rank));
    }
  }

  uint64_t verdicts() const {
    uint64_t sum = 0;
    for (const Counter counter : test::kPacketVerdicts) sum += engine_.counters().get(counter);
    return sum;
  }

  void deliver(const std::vector<std::byte>& packet) {
    const uint64_t verdicts_before = verdicts();
    const uint64_t pulls_before = engine_.counters().get(Counter::kPullsReceived);
    const uint64_t aggregated_before = engine_.counters().get(Counter::kAggregated);
    const nic::RxPacket received{packet.data(), static_cast<uint32_t>(packet.size()), from_};
    const size_t allocations = allocation_count();
    engine_.on_burst({&received, 1}, now_ns_);
    PBOX_CHECK(allocation_count() == allocations);

    const uint64_t verdict = verdicts() - verdicts_before;
    const uint64_t pulls = engine_.counters().get(Counter::kPullsReceived) - pulls_before;
    PBOX_CHECK(engine_.counters().get(Counter::kRxPackets) == ++delivered_);
    PBOX_CHECK(pulls <= 1 && verdict <= 1 && pulls + verdict >= 1);
    if (engine_.counters().get(Counter::kAggregated) != aggregated_before) account(packet);
    for (Job& job : jobs_) note_mismatch(job, packet);
    for (const Job& job : jobs_) job.oracle->check_parked(*job.shard);
    check_rounds_finished();
  }

  void pass_time() {
    now_ns_ += uint64_t{input_.byte()} << input_.below(32);
    const size_t allocations = allocation_count();
    while (engine_.finish_waiting(now_ns_)) {
    }
    PBOX_CHECK(allocation_count() == allocations);
    for (Job& job : jobs_) job.oracle->end_past_grace(now_ns_);
    check_rounds_finished();
  }

  void check_rounds_finished() const {
    uint64_t finished = finished_before_;
    for (const Job& job : jobs_) finished += job.oracle->rounds_finished();
    PBOX_CHECK(engine_.counters().get(Counter::kRoundsFinished) == finished);
  }

  static wire::Parsed parsed(const std::vector<std::byte>& packet) {
    wire::Parsed parsed;
    const auto reject = wire::parse(packet.data(), static_cast<uint32_t>(packet.size()), parsed);
    PBOX_CHECK(reject == wire::Reject::kNone && wire::verify_tag(kTag, parsed));
    return parsed;
  }

  void account(const std::vector<std::byte>& packet) {
    const wire::Parsed push = parsed(packet);
    job_of(push.header.spi).oracle->aggregated(push, now_ns_);
  }

  void note_mismatch(Job& job, const std::vector<std::byte>& packet) {
    const auto mismatch = job.shard->mismatch();
    if (mismatch.has_value() == job.oracle->has_mismatch()) return;
    const wire::Parsed push = parsed(packet);
    PBOX_CHECK(mismatch.has_value() && &job_of(push.header.spi) == &job);
    job.oracle->refused(push, *mismatch);
  }

  Job& job_of(uint32_t spi) { return jobs_[(spi >> 24) - 0x70]; }

  // Takes at most `limit` packets of what is to be sent, as a port that is full does.
  size_t send(uint32_t limit) {
    const size_t allocations = allocation_count();
    const auto packets = engine_.to_send();
    PBOX_CHECK(allocation_count() == allocations);
    PBOX_CHECK(packets.size() <= limits::kBurstPackets);
    const auto taken = packets.first(std::min<size_t>(limit, packets.size()));
    for (const nic::TxPacket& packet : taken) check_sent(packet);
    engine_.sent(taken.size());
    return taken.size();
  }

  void check_sent(const nic::TxPacket& packet) {
    const wire::Header& header = packet.header;
    PBOX_CHECK((header.spi & wire::kSpiToWorker) != 0 && *packet.to == from_);
    BoxOracle& oracle = *job_of(header.spi).oracle;
    const bool names_zeros = header.type() == wire::PacketType::kZeros;
    const bool is_result = header.type() == wire::PacketType::kResult || names_zeros;
    // Results are sent from the memory where they lie. A result that its port has held back for a
    // whole round may carry a later round's values. No rank waits for it any more.
    const bool waits_for_all = oracle.shape().is_bsp();
    if (is_result && waits_for_all && header.round + 1 != oracle.open_round(header.chunk)) return;
    PBOX_CHECK(packet.tag == wire::make_tag(kTag, header, packet.payload));
    if (names_zeros) {
      oracle.check_zeros(header, packet.payload);
    } else if (is_result) {
      oracle.check_result(header, packet.payload);
    } else if (header.type() == wire::PacketType::kStatus) {
      wire::StatusPayload status;
      std::memcpy(&status, packet.payload, sizeof(status));
      oracle.check_status(header, status);
    } else {
      PBOX_CHECK(header.type() == wire::PacketType::kGrant);
    }
  }

  const nic::Endpoint from_{.address = {10, 0, 0, 1}, .port = 7000};
  Input& input_;
  pipeline::Engine engine_{{.pipeline_index = kPipeline, .tag = kTag}};
  std::array<Job, 2> jobs_;
  uint64_t now_ns_ = 1'000'000'000;
  uint64_t next_number_ = 1;
  uint64_t delivered_ = 0;
  uint64_t finished_before_ = 0;  // rounds that removed shards had finished
  bool packets_lost_ = false;     // a command may have dropped packets that were due
};

}  // namespace
}  // namespace pbox::fuzz

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  pbox::fuzz::Input input(data, size);
  pbox::fuzz::BoxDriver(input).run();
  return 0;
}
