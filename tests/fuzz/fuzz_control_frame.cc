// Tests control messages with arbitrary content, in three ways:
// * at a box: a stream of bytes passes the product's framing, parsing, validation and job registry,
//   with real pipeline engines behind it. Messages are raw bytes, or well formed with fields from
//   the input, so that jobs do start. Each answer of the box must fit a frame.
// * at a worker: a SESSION that is accepted must make an exchange.
// * at one end of an RDMA connection: a QueuePair from the other end.
//
// Input: one byte of options, then a SESSION if options & 4 is set, or a QueuePair if options & 8
// is set, otherwise operations (see Registry::run).
#include <google/protobuf/stubs/logging.h>

#include <array>
#include <iterator>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "appliance/control/job_registry.h"
#include "base/check.h"
#include "nic/wire/control_frame.h"
#include "nic/wire/control_versions.h"
#include "nic/wire/queue_pair.h"
#include "pipeline/engine.h"
#include "tests/fuzz/input.h"
#include "worker/membership/session.h"
#include "worker/protocol/exchange.h"

namespace pbox::fuzz {
namespace {

using control::ConnectionId;

constexpr uint32_t kPipelines = 2;
constexpr uint64_t kJobMemoryBytes = 4u << 20;

class Pipelines : public control::PipelineHost {
 public:
  uint32_t count() const override { return kPipelines; }
  control::PipelineInfo info(uint32_t pipeline) const override {
    return {.address = pipeline == 0 ? "" : "10.0.0.9",
            .udp_port = static_cast<uint16_t>(limits::kDataPortFirst + pipeline),
            .receive_buffer_bytes = 1u << 20};
  }
  void execute(uint32_t pipeline, pipeline::Command command) override {
    engines_[pipeline].execute(command);
  }

 private:
  std::array<pipeline::Engine, kPipelines> engines_{
      pipeline::Engine({.pipeline_index = 0, .tag = {}}),
      pipeline::Engine({.pipeline_index = 1, .tag = {}})};
};

// Returns one piece repeated: a long text, characters of several bytes, or bytes that are not text.
std::string odd_text(Input& input) {
  static constexpr const char* kPieces[] = {"n", "\"", "\n", "\u00e9", "\u20ac", "\xff"};
  const char* piece = kPieces[input.below(std::size(kPieces))];
  std::string text;
  for (uint32_t count = input.byte(); count > 0; --count) text += piece;
  return text;
}

void fill_tensors(Input& input, proto::Join& join) {
  const uint32_t count = input.below(4);
  for (uint32_t index = 0; index < count; ++index) {
    proto::Tensor& tensor = *join.add_tensors();
    const uint8_t odd = input.byte();  // each bit makes one field unusual
    tensor.set_name((odd & 1) != 0 ? odd_text(input)
                                   : std::string("t").append(std::to_string(index)));
    tensor.set_elements((odd & 2) != 0 ? input.number<uint64_t>() : 1u + input.byte());
    tensor.set_dtype(input.below((odd & 4) != 0 ? 256 : wire::kDtypeCount));
    tensor.set_priority((odd & 8) != 0 ? input.number<int32_t>() : 0);
    tensor.set_lr_scale((odd & 16) != 0 ? static_cast<float>(input.number<int16_t>()) / 256 : 1);
    tensor.set_has_weight_decay((odd & 32) != 0);
    tensor.set_weight_decay(static_cast<float>(odd & 192));
  }
}

proto::WorkerMessage join_message(Input& input) {
  proto::WorkerMessage message;
  proto::Join& join = *message.mutable_join();
  const uint8_t odd = input.byte();
  join.set_protocol_version((odd & 1) != 0 ? input.byte() : wire::kControlProtocolVersion);
  join.set_job((odd & 2) != 0 ? odd_text(input)
                              : std::string(1, static_cast<char>('a' + input.below(2))));
  join.set_rank(input.below(3));
  join.set_world_size((odd & 4) != 0 ? input.number<uint32_t>() : 2);
  join.set_mode(input.below((odd & 8) != 0 ? 4 : 2));
  join.set_reduction(input.below((odd & 8) != 0 ? 4 : 2));
  join.set_chunk_bytes((odd & 16) != 0 ? input.number<uint32_t>() : 0);
  join.set_path_mtu((odd & 32) != 0 ? input.number<uint16_t>() : 1500);
  join.set_join_timeout_ms((odd & 64) != 0 ? input.number<uint32_t>() : 0);
  join.set_lost_timeout_ms((odd & 128) != 0 ? input.number<uint32_t>() : 0);
  join.set_priority_policy(join.join_timeout_ms() % 4);
  join.set_delivery(join.lost_timeout_ms() % 3);
  if (join.mode() != 0) {
    proto::Optimizer& optimizer = *join.mutable_optimizer();
    optimizer.set_kind(input.below(7));
    optimizer.set_learning_rate(static_cast<float>(input.number<int16_t>()) / 256);
    optimizer.set_beta1(static_cast<float>(input.byte()) / 250);
  }
  fill_tensors(input, join);
  return message;
}

// Makes a message of a worker that has joined before, or claims to have.
proto::WorkerMessage return_message(Input& input) {
  proto::WorkerMessage message = join_message(input);
  proto::Join& join = *message.mutable_join();
  const uint8_t choice = input.byte();
  join.set_resumes((choice & 1) != 0);
  join.set_rejoins((choice & 2) != 0);
  join.set_on_worker_lost(choice >> 2 & 3u);
  join.set_recovery(choice >> 4 & 1u);
  join.set_incarnation(choice >> 5 & 3u);
  join.set_epoch((choice & 128) != 0 ? input.number<uint32_t>() : input.byte());
  join.set_generation(input.byte());
  join.set_barrier_sequence(input.byte());
  return message;
}

proto::WorkerMessage rounds_message(Input& input) {
  proto::WorkerMessage message;
  proto::RoundMap& map = *message.mutable_rounds();
  const uint8_t choice = input.byte();
  map.set_first_chunk((choice & 1) != 0 ? input.byte() : 0);
  map.set_last((choice & 2) != 0);
  for (uint32_t count = choice >> 2; count > 0; --count) map.add_rounds(input.byte() & 3);
  return message;
}

proto::WorkerMessage small_message(Input& input) {
  proto::WorkerMessage message;
  switch (input.below(4)) {
    case 0: message.mutable_leave(); break;
    case 1: message.mutable_heartbeat()->set_sequence(input.byte()); break;
    case 2: message.mutable_barrier()->set_sequence(input.byte()); break;
    default: {
      const auto rate = static_cast<float>(input.number<int16_t>()) / 256;
      message.mutable_set_learning_rate()->set_learning_rate(rate);
    }
  }
  return message;
}

class Registry {
 public:
  explicit Registry(uint8_t options)
      : registry_({.box_name = "box",
                   .job_limits = {.chunks_max = 4096},
                   .jobs_max = 1u + (options & 1),
                   .job_memory_bytes = kJobMemoryBytes,
                   .payload_crc = (options & 2) != 0},
                  pipelines_, epochs_, parts_) {}

  // Each operation is a byte: its kind in the low three bits, its connection in the high half.
  void run(Input& input) {
    while (!input.empty()) {
      const uint8_t operation = input.byte();
      const ConnectionId id = 1u + (operation >> 4) % kConnections;
      switch (operation & 7) {
        case 0: say(id, input.bytes(input.byte())); break;
        case 1: say(id, join_message(input)); break;
        case 2: say(id, small_message(input)); break;
        case 3: hang_up(id); break;
        case 5: say(id, return_message(input)); break;
        case 6: say(id, rounds_message(input)); break;
        case 4:
          now_ns_ += uint64_t{input.byte()} * 100'000'000;
          registry_.on_tick(now_ns_);
          check_views();
          break;
        default: {
          const auto body = input.bytes(input.byte());
          registry_.on_message(id, {reinterpret_cast<const char*>(body.data()), body.size()},
                               now_ns_);
        }
      }
      deliver();
    }
    registry_.shut_down();
    deliver();
    PBOX_CHECK(registry_.memory_taken_bytes() == 0 && registry_.views(now_ns_).empty());
  }

 private:
  static constexpr uint32_t kConnections = 4;

  void say(ConnectionId id, const proto::WorkerMessage& message) {
    const auto framed = wire::frame(message);
    PBOX_CHECK(framed.ok());
    const auto* data = reinterpret_cast<const std::byte*>(framed->data());
    say(id, std::vector<std::byte>(data, data + framed->size()));
  }

  // Does what ControlServer does: the frame reader's messages go to the registry, and an invalid
  // frame ends the connection.
  void say(ConnectionId id, const std::vector<std::byte>& bytes) {
    if (!readers_.contains(id)) {
      readers_[id] = {};
      registry_.on_open(id, {}, now_ns_);
    }
    readers_[id].append(reinterpret_cast<const char*>(bytes.data()), bytes.size());
    for (auto next = readers_[id].next(); next.ok() && next->has_value();
         next = readers_[id].next()) {
      registry_.on_message(id, **next, now_ns_);
      deliver();
      if (!readers_.contains(id)) return;
    }
    if (!readers_[id].next()) hang_up(id);
  }

  void hang_up(ConnectionId id) {
    if (readers_.erase(id) == 1) registry_.on_closed(id, "gone", now_ns_);
  }

  void deliver() {
    for (auto actions = registry_.take_actions(); !actions.empty();
         actions = registry_.take_actions()) {
      for (const control::Action& action : actions) {
        if (action.kind == control::Action::Kind::kClose) {
          hang_up(action.connection);
        } else {
          const auto framed = wire::frame(action.message);
          PBOX_CHECK(framed.ok());
          // The worker's end parses it too.
          proto::BoxMessage read;
          PBOX_CHECK(read.ParseFromString(framed->substr(wire::kControlLengthBytes)));
        }
      }
    }
    for (const auto& event : registry_.take_events()) PBOX_CHECK(!event.text.empty());
    PBOX_CHECK(registry_.memory_taken_bytes() <= kJobMemoryBytes);
    PBOX_CHECK(registry_.connection_count() == readers_.size());
  }

  // Checks the views that the admin side shows.
  void check_views() const {
    uint64_t memory_bytes = 0;
    for (const control::JobView& job : registry_.views(now_ns_)) {
      PBOX_CHECK(!job.name.empty() && job.workers.size() == job.world_size);
      memory_bytes += job.memory_bytes;
    }
    PBOX_CHECK(memory_bytes == registry_.memory_taken_bytes());
  }

  Pipelines pipelines_;
  std::unique_ptr<storage::Disk> disk_ = std::move(*storage::open_state_folder(""));
  storage::EpochStore epochs_ = *storage::EpochStore::open(*disk_);
  control::SingleBoxDirectory parts_{limits::kChunkBytesDefault};
  control::JobRegistry registry_;
  std::map<ConnectionId, wire::FrameReader> readers_;
  uint64_t now_ns_ = 1'000'000'000'000;
};

void read_session(const std::vector<std::byte>& body) {
  proto::Session session;
  if (!session.ParseFromArray(body.data(), static_cast<int>(body.size()))) return;
  const std::vector<worker::TensorSpec> tensors = {{.name = "a", .elements = 5000},
                                                   {.name = "b", .elements = 7}};
  const auto spec = worker::parse_session(session, tensors, {});
  if (!spec) return;
  worker::Exchange exchange(*spec, tensors);
  std::vector<std::byte> buffer(5000 * sizeof(float));
  exchange.start({.tensor = 0, .input = buffer.data(), .output = buffer.data()});
  size_t sent = 0;
  for (uint32_t pipeline = 0; pipeline < exchange.pipeline_count(); ++pipeline) {
    const auto packets = exchange.to_send(pipeline, 1);
    for (const nic::TxPacket& packet : packets) sent += packet.header.payload_bytes;
    exchange.sent(pipeline, packets.size());
  }
  PBOX_CHECK(sent > 0);
}

// Checks that an accepted value can be written and read back, and that no device gets a number that
// it cannot have.
void read_queue_pair(const std::vector<std::byte>& body) {
  proto::QueuePair message;
  if (!message.ParseFromArray(body.data(), static_cast<int>(body.size()))) return;
  const auto address = wire::parse_queue_pair(message);
  if (!address) return;
  PBOX_CHECK(address->number >= 2 && address->number < 1u << 24);
  PBOX_CHECK(address->packet_sequence < 1u << 24);
  PBOX_CHECK(address->mtu_bytes >= 256 && address->mtu_bytes <= 4096);
  const wire::LandingRing& ring = address->landing;
  PBOX_CHECK(ring.slots == 0 ||
             (ring.slots >= wire::kLandingSlotsMin && ring.slots <= wire::kLandingSlotsMax &&
              ring.slot_bytes >= limits::kPacketBytesMax &&
              ring.address + uint64_t{ring.slots} * ring.slot_bytes >= ring.address));
  proto::QueuePair again;
  wire::write_queue_pair(*address, again);
  PBOX_CHECK(*wire::parse_queue_pair(again) == *address);
}

}  // namespace
}  // namespace pbox::fuzz

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  google::protobuf::SetLogHandler(nullptr);
  pbox::fuzz::Input input(data, size);
  const uint8_t options = input.byte();
  if ((options & 4) != 0) {
    pbox::fuzz::read_session(input.bytes(size));
  } else if ((options & 8) != 0) {
    pbox::fuzz::read_queue_pair(input.bytes(size));
  } else {
    pbox::fuzz::Registry(options).run(input);
  }
  return 0;
}
