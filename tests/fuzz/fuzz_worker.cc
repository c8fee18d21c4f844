// Drives the worker's protocol core by any sequence of starts, packets, partial sends and times.
// Checks throughout that pushes carry what they must, that arriving data lands where it belongs or
// nowhere, and that each packet counts once. At the end either the exchange is abandoned, or an
// honest box answers everything and every tensor must then complete.
//
// Input: the shapes of the tensors (worker_oracle.h), credit, then operations (WorkerDriver::run).
#include <array>
#include <bit>
#include <vector>

#include "base/check.h"
#include "nic/wire/chunk_layout.h"
#include "nic/wire/zeros.h"
#include "tests/fuzz/input.h"
#include "tests/fuzz/worker_oracle.h"
#include "worker/protocol/exchange.h"

namespace pbox::fuzz {
namespace {

class WorkerDriver {
 public:
  explicit WorkerDriver(Input& input)
      : input_(input),
        oracle_(input),
        exchange_(oracle_.session(input.byte() * limits::kCreditUnitBytes), oracle_.specs(),
                  oracle_.shadow()) {}

  // Each operation is a byte, with its kind in the low half.
  void run() {
    while (!input_.empty()) {
      const uint8_t operation = input_.byte();
      switch (operation & 15) {
        case 0: start(); break;
        case 1:
        case 2: send(operation >> 7, input_.byte()); break;
        case 3:
        case 4: send(operation >> 7, UINT32_MAX); break;
        case 5:
        case 6: {
          const Place place = choose_place();
          deliver(sealed((operation & 64) != 0 ? zeros(place) : result(place)));
          break;
        }
        case 7: answer_chunk(choose_place()); break;
        case 8:
        case 9: deliver(sealed(status(choose_place()))); break;
        case 10: deliver(damaged()); break;
        case 11: deliver(input_.bytes(input_.byte())); break;
        case 12: expire(); break;
        case 13: now_ns_ += uint64_t{input_.byte()} << input_.below(24); break;
        case 14: turn(); break;
        default: (operation & 16) != 0 ? resume() : new_generation(); break;
      }
      collect();
    }
    oracle_.check_outputs();
    const bool gives_up = exchange_.statistics().packets_received % 2 == 1;
    gives_up ? abandon() : heal();
    oracle_.check_outputs();
  }

 private:
  static constexpr uint32_t kTurnsMax = 2000;

  struct Place {
    uint32_t chunk = 0;
    uint32_t round = 0;
    uint32_t fragment = 0;
  };

  void start() {
    const uint32_t index = input_.below(static_cast<uint32_t>(oracle_.tensors().size()));
    WorkerOracle::Tensor& tensor = oracle_.tensors()[index];
    PBOX_CHECK(exchange_.busy(index) == tensor.started);
    if (tensor.started) return;
    const uint8_t value = input_.byte();
    const StartedSlot slot = oracle_.is_collective()
                                 ? read_slot_round(input_, kChunkBytes, oracle_.has_shadow())
                                 : StartedSlot{};
    oracle_.start(index, value, slot);
    const std::byte* from = tensor.in_place ? tensor.output.data() : tensor.input.data();
    if (slot.round != nullptr && slot.round->is_empty) from = nullptr;
    exchange_.start({.tensor = index,
                     .input = from,
                     .output = slot.writes ? tensor.output.data() : nullptr,
                     .priority = input_.below(3) == 0 ? 1 : 0,
                     .slot = slot.round});
  }

  // Resumes at a box that may have lost its state, which only a worker with a shadow can do.
  void resume() {
    if (!oracle_.has_shadow()) return;
    exchange_.suspend();
    if (input_.below(2) == 0) start();
    for (uint32_t pipeline = 0; pipeline < kPipelines; ++pipeline) {
      PBOX_CHECK(exchange_.to_send(pipeline, now_ns_).empty());
    }
    PBOX_CHECK(exchange_.resume(oracle_.resume(input_)).ok());
  }

  void new_generation() {
    oracle_.new_generation();
    exchange_.set_generation(oracle_.generation());
  }

  size_t send(uint32_t pipeline, uint32_t limit) {
    const auto packets = exchange_.to_send(pipeline, now_ns_);
    PBOX_CHECK(packets.size() <= limits::kBurstPackets);
    for (const nic::TxPacket& packet : packets) oracle_.made(packet);
    const auto taken = packets.first(std::min<size_t>(limit, packets.size()));
    for (const nic::TxPacket& packet : taken) oracle_.check_sent(packet, pipeline);
    exchange_.sent(pipeline, taken.size());
    return taken.size();
  }

  void drain() {
    for (uint32_t pipeline = 0; pipeline < kPipelines; ++pipeline) {
      for (uint32_t bursts = 0; send(pipeline, UINT32_MAX) > 0; ++bursts) {
        PBOX_CHECK(bursts < kTurnsMax);
      }
    }
  }

  void expire() {
    const uint64_t deadline_ns = exchange_.next_deadline_ns();
    if (deadline_ns != UINT64_MAX) now_ns_ = std::max(now_ns_, deadline_ns);
    exchange_.on_timer(now_ns_);
    check_laggards();
  }

  // Does what a turn of the I/O thread does.
  void turn() {
    drain();
    exchange_.on_timer(now_ns_);
  }

  Place choose_place() {
    const uint8_t choice = input_.byte();
    Place place;
    place.chunk = (choice & 15u) % static_cast<uint32_t>(oracle_.chunks().size());
    place.round = oracle_.chunks()[place.chunk].round;
    place.fragment = (choice >> 4 & 3u) % oracle_.chunks()[place.chunk].fragments();
    if (choice >> 6 == 3) place.round += (choice & 16) != 0 ? 1u : UINT32_MAX;
    return place;
  }

  wire::Header header_of(const Place& place) {
    wire::Header header;
    header.spi = oracle_.spi(WorkerOracle::pipeline_of(place.chunk)) | wire::kSpiToWorker;
    header.packet_number = ++packet_number_;
    header.epoch = oracle_.epoch();
    header.chunk = place.chunk;
    header.round = place.round;
    header.fragment = static_cast<uint16_t>(place.fragment);
    header.credit = 8;
    header.generation = oracle_.generation();
    return header;
  }

  template <typename Payload>
  static std::vector<std::byte> join(const wire::Header& header, const Payload& payload) {
    std::vector<std::byte> packet(sizeof(header) + header.payload_bytes);
    std::memcpy(packet.data(), &header, sizeof(header));
    std::memcpy(packet.data() + sizeof(header), payload, header.payload_bytes);
    return packet;
  }

  std::vector<std::byte> result(const Place& place) {
    const WorkerOracle::Chunk& chunk = oracle_.chunks()[place.chunk];
    wire::Header header = header_of(place);
    header.set_type(wire::PacketType::kResult);
    header.dtype_scale = static_cast<uint16_t>(oracle_.tensors()[chunk.tensor].spec.dtype);
    const uint32_t bytes =
        chunk.bytes == 0 ? 0 : wire::fragment_length(chunk.bytes, kFragmentBytes, place.fragment);
    header.payload_bytes = static_cast<uint16_t>(bytes);
    if (const worker::SlotRound* slot = oracle_.slot(chunk)) {
      header.dtype_scale = static_cast<uint16_t>(slot->shape.dtype);
      header.timestamp_us = slot->shape.digest;
    }
    if (wire::applies_on_arrival(oracle_.sync().model) && chunk.round > 0) {
      const uint8_t age = input_.byte();
      header.round -= std::min<uint32_t>(age & 3, header.round);
      header.timestamp_us = header.round + 1 + (age >> 2 & 3u);  // own rounds in the result
    }
    const std::vector<uint8_t> payload(std::max(bytes, 1u), static_cast<uint8_t>(packet_number_));
    return join(header, payload.data());
  }

  // Names fragments of a result as zero.
  std::vector<std::byte> zeros(const Place& place) {
    const WorkerOracle::Chunk& chunk = oracle_.chunks()[place.chunk];
    wire::Header header = header_of(place);
    header.set_type(wire::PacketType::kZeros);
    header.dtype_scale = static_cast<uint16_t>(oracle_.tensors()[chunk.tensor].spec.dtype);
    header.payload_bytes = sizeof(wire::ZerosPayload);
    const wire::ZerosPayload named{.mask = uint64_t{input_.byte()} | 1ull << place.fragment};
    header.fragment = static_cast<uint16_t>(std::countr_zero(named.mask));
    return join(header, &named);
  }

  // Returns the STATUS that the box sends to a rank that gets no result of a slot.
  std::vector<std::byte> announcement(const Place& place) {
    wire::Header header = header_of(place);
    header.set_type(wire::PacketType::kStatus);
    header.payload_bytes = sizeof(wire::StatusPayload);
    const wire::StatusPayload status{.received_mask = 1, .finished_round = place.round + 1};
    return join(header, &status);
  }

  std::vector<std::byte> status(const Place& place) {
    wire::Header header = header_of(place);
    header.set_type(wire::PacketType::kStatus);
    wire::StatusPayload status;
    status.received_mask = input_.byte();
    const uint8_t choice = input_.byte();
    status.finished_round = place.round + (choice >> 2 & 1u);
    status.missing_workers = choice & 3;
    status.first_missing_rank = status.missing_workers;
    header.payload_bytes = sizeof(status);
    return join(header, &status);
  }

  static std::vector<std::byte> sealed(std::vector<std::byte> packet) {
    wire::Header header;
    std::memcpy(&header, packet.data(), sizeof(header));
    const bool whole = packet.size() == sizeof(header) + header.payload_bytes;
    const wire::Tag tag =
        whole ? wire::make_tag(kTag, header, packet.data() + sizeof(header)) : wire::Tag{};
    packet.insert(packet.end(), tag.begin(), tag.end());
    return packet;
  }

  // Returns a sound packet with a few bytes of its header changed before its tag is made, or with a
  // different length.
  std::vector<std::byte> damaged() {
    const uint8_t how = input_.byte();
    auto packet = (how & 1) != 0 ? result(choose_place()) : status(choose_place());
    for (uint32_t changes = how >> 4 & 3u; changes > 0; --changes) {
      packet[input_.below(sizeof(wire::Header))] = std::byte{input_.byte()};
    }
    packet = sealed(std::move(packet));
    if ((how & 2) != 0) packet.resize(input_.number<uint16_t>() % (packet.size() + 8));
    return packet;
  }

  void answer_chunk(Place place) {
    const uint32_t fragments = oracle_.chunks()[place.chunk].fragments();
    for (place.fragment = 0; place.fragment < fragments; ++place.fragment) {
      deliver(sealed(result(place)));
    }
  }

  // Delivers the packet on the pipeline that its spi names; on pipeline 0 if the packet is unsound.
  void deliver(const std::vector<std::byte>& packet) {
    wire::Parsed parsed;
    const bool sound = wire::parse(packet.data(), static_cast<uint32_t>(packet.size()), parsed) ==
                           wire::Reject::kNone &&
                       wire::verify_tag(kTag, parsed);
    const uint32_t pipeline = sound ? parsed.header.spi >> 13 & (kPipelines - 1) : 0;
    const worker::Statistics before = exchange_.statistics();
    const nic::RxPacket received{packet.data(), static_cast<uint32_t>(packet.size()), {}};
    exchange_.on_burst(pipeline, {&received, 1}, now_ns_);
    const worker::Statistics after = exchange_.statistics();
    PBOX_CHECK(after.packets_received == before.packets_received + 1);
    const uint64_t dropped = after.rejected_packets - before.rejected_packets +
                             after.stale_packets - before.stale_packets;
    PBOX_CHECK(dropped == 0 || (dropped == 1 && after.bytes_pulled == before.bytes_pulled));
    if (after.bytes_pulled == before.bytes_pulled) {
      const bool is_result = sound && (parsed.header.type() == wire::PacketType::kResult ||
                                       parsed.header.type() == wire::PacketType::kZeros);
      if (dropped == 0 && is_result) oracle_.came_back(parsed);
      const bool is_status = sound && parsed.header.type() == wire::PacketType::kStatus;
      if (dropped == 0 && is_status) oracle_.acknowledged(parsed);
      if (dropped == 0 && is_status) oracle_.told(parsed);
      return;
    }
    PBOX_CHECK(sound && after.bytes_pulled == before.bytes_pulled + parsed.header.payload_bytes);
    oracle_.accepted(parsed);
  }

  void collect() {
    for (const uint32_t tensor : exchange_.take_completed()) oracle_.completed(tensor);
  }

  // Lets an honest box answer all pushes. No tensor may be left waiting.
  void heal() {
    for (uint32_t turns = 0; is_busy() || oracle_.is_giving(); ++turns) {
      PBOX_CHECK(turns < kTurnsMax);
      drain();
      for (uint32_t id = 0; id < oracle_.chunks().size(); ++id) answer_missing(id);
      collect();
      expire();
    }
    PBOX_CHECK(exchange_.next_deadline_ns() == UINT64_MAX);
  }

  void answer_missing(uint32_t id) {
    const WorkerOracle::Chunk chunk = oracle_.chunks()[id];
    if (oracle_.gets_no_result(chunk)) {
      if (!chunk.pushed || (chunk.is_done && !chunk.giving)) return;
      return deliver(sealed(announcement({id, chunk.round - (chunk.giving ? 1 : 0), 0})));
    }
    if (chunk.giving && chunk.pushed) answer_chunk({id, chunk.round - 1, 0});
    if (oracle_.reads_cache(chunk) && !chunk.is_done && chunk.pushed) {
      answer_chunk({id, chunk.round, 0});
    }
    for (uint32_t fragment = 0; fragment < chunk.fragments(); ++fragment) {
      const WorkerOracle::Chunk& now = oracle_.chunks()[id];
      if (!oracle_.awaits(id, now.round, fragment)) continue;
      const uint64_t pulled = exchange_.statistics().bytes_pulled;
      // A box that drops rounds has only the newest result.
      const uint32_t newest = now.clock > now.round ? now.clock - 1 : now.round;
      deliver(sealed(result({id, newest, fragment})));
      PBOX_CHECK(exchange_.statistics().bytes_pulled > pulled);
    }
  }

  void abandon() {
    exchange_.abandon();
    for (uint32_t id = 0; id < oracle_.chunks().size(); ++id) {
      const uint64_t pulled = exchange_.statistics().bytes_pulled;
      deliver(sealed(result({id, oracle_.chunks()[id].round, 0})));
      PBOX_CHECK(exchange_.statistics().bytes_pulled == pulled);
    }
    expire();
    for (uint32_t pipeline = 0; pipeline < kPipelines; ++pipeline) {
      PBOX_CHECK(exchange_.to_send(pipeline, now_ns_).empty());
    }
    PBOX_CHECK(exchange_.next_deadline_ns() == UINT64_MAX && exchange_.take_completed().empty());
  }

  // Checks that only a tensor with an operation in flight waits for a rank or the box.
  void check_laggards() const {
    for (uint32_t tensor = 0; tensor < exchange_.tensor_count(); ++tensor) {
      const worker::Laggard laggard = exchange_.laggard(tensor, now_ns_);
      PBOX_CHECK(exchange_.busy(tensor) || laggard.kind == worker::Laggard::Kind::kNobody);
      PBOX_CHECK(laggard.kind != worker::Laggard::Kind::kRank || laggard.missing_workers > 0);
    }
  }

  bool is_busy() const {
    for (uint32_t tensor = 0; tensor < exchange_.tensor_count(); ++tensor) {
      if (exchange_.busy(tensor)) return true;
    }
    return false;
  }

  Input& input_;
  WorkerOracle oracle_;
  worker::Exchange exchange_;
  uint64_t now_ns_ = 1'000'000'000;
  uint64_t packet_number_ = 0;
};

}  // namespace
}  // namespace pbox::fuzz

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  pbox::fuzz::Input input(data, size);
  pbox::fuzz::WorkerDriver(input).run();
  return 0;
}
