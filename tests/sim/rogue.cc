#include "tests/sim/rogue.h"

#include <bit>
#include <cstring>
#include <utility>

#include "nic/wire/chunk_layout.h"
#include "nic/wire/control_frame.h"
#include "tests/sim/worker.h"
#include "tests/support/packet_bytes.h"

namespace pbox::sim {
namespace {

constexpr uint16_t kPort = 20'000;
constexpr uint64_t kPauseMaxNs = 400'000;

}  // namespace

Rogue::Rogue(Rack& rack, JobModel& job)
    : rack_(rack), job_(job), rng_(rack.options.seed ^ 0x726f677565ull) {
  rack.control.attach(job.first_host, *this);
}

void Rogue::start() {
  membership_ = make_membership(rack_, job_, 0, 1, false, {.box = job_.options.box}, nullptr);
  membership_->begin(rack_.queue.now_ns());
  perform();
}

void Rogue::stop() {
  stopped_ = true;
  if (connection_ != 0) rack_.control.close(std::exchange(connection_, 0), job_.first_host);
}

void Rogue::perform() {
  using Kind = worker::Action::Kind;
  for (const worker::Action& action : membership_->take_actions()) {
    if (stopped_) return;
    if (action.kind == Kind::kConnect) {
      connection_ = rack_.control.connect(job_.first_host, job_.options.box);
    } else if (action.kind == Kind::kSend) {
      const auto framed = wire::frame(action.message);
      rack_.control.send(connection_, job_.first_host, framed->substr(wire::kControlLengthBytes));
    } else if (action.kind == Kind::kMeasurePath) {
      rack_.queue.after(1, [this] {
        membership_->on_path_mtu(job_.options.path_mtu, rack_.queue.now_ns());
        perform();
      });
    } else if (action.kind == Kind::kOpenTransport) {
      session_ = action.session;
      attack();
    }
  }
}

void Rogue::on_connected(ConnectionId) {
  if (rack_.options.suite != seal::Suite::kNone)
    keys_ = rack_.keys.of(connection_, crypto::End::kWorker);
  membership_->on_connected(endpoint_of(job_.options.box, limits::kControlPort),
                            rack_.queue.now_ns(), keys_.get());
  perform();
}

void Rogue::on_control_message(ConnectionId, const std::string& body) {
  proto::BoxMessage message;
  if (stopped_ || !message.ParseFromString(body)) return;
  membership_->on_message(message, rack_.queue.now_ns());
  perform();
}

void Rogue::on_closed(ConnectionId, const std::string&) {
  connection_ = 0;
  stopped_ = true;
}

uint32_t Rogue::fragments(uint32_t chunk) const {
  return wire::fragment_count(job_.chunks[chunk].elements * job_.element_bytes(),
                              session_->fragment_bytes);
}

uint32_t Rogue::fragment_bytes(uint32_t chunk, uint32_t fragment) const {
  return wire::fragment_length(job_.chunks[chunk].elements * job_.element_bytes(),
                               session_->fragment_bytes, fragment);
}

Rogue::Place Rogue::choose_place() {
  Place place;
  place.chunk = static_cast<uint32_t>(rng_.below(job_.chunks.size()));
  place.lane = session_->chunk_pipeline[place.chunk];
  place.round = round_ - static_cast<uint32_t>(rng_.below(3));
  place.fragment = static_cast<uint32_t>(rng_.below(fragments(place.chunk)));
  return place;
}

wire::Header Rogue::header(const Place& place, wire::PacketType type) {
  wire::Header header;
  header.set_type(type);
  header.spi = session_->pipelines[place.lane].spi;
  header.epoch = session_->epoch;
  header.generation = session_->generation;
  header.chunk = place.chunk;
  header.round = place.round;
  header.fragment = static_cast<uint16_t>(place.fragment);
  header.dtype_scale = static_cast<uint16_t>(job_.options.dtype);
  const bool has_mask = type == wire::PacketType::kPull || type == wire::PacketType::kZeros;
  header.payload_bytes = has_mask
                             ? uint16_t{sizeof(wire::PullPayload)}
                             : static_cast<uint16_t>(fragment_bytes(place.chunk, place.fragment));
  if (job_.collectives && type == wire::PacketType::kPush) {
    if (rng_.below(4) == 0) draw_shape();
    shape_.fragment_count = static_cast<uint16_t>(fragments(place.chunk));
    wire::write_shape(shape_, rng_.below(16) == 0, header);
  }
  return header;
}

// For collectives: draws the shape of the rogue's next pushes, which no operation of the other
// ranks has.
void Rogue::draw_shape() {
  shape_.digest = static_cast<uint32_t>(rng_.next());
  shape_.dtype = static_cast<wire::Dtype>(rng_.below(wire::kCollectiveDtypeCount));
  shape_.combine = static_cast<wire::Combine>(rng_.below(wire::kCombineCount));
  shape_.audience = static_cast<wire::Audience>(rng_.below(4));
  shape_.owner = static_cast<uint16_t>(rng_.below(job_.options.workers + 1));
}

void Rogue::send(const Place& place, wire::Header header, bool no_numbers) {
  rack_.counts.add(Fault::kRogue);
  std::vector<std::byte> payload(header.payload_bytes,
                                 no_numbers ? std::byte{0xff} : std::byte{0x3c});
  if (header.type_value() == static_cast<uint8_t>(wire::PacketType::kZeros)) {
    name_fragments(place, header, payload);
  }
  // If there are keys, the rogue has its own, and seals most of what it sends.
  seal::SessionSeal& seal = *session_->pipelines[place.lane].seal;
  const bool forges = seal.has_keys() && rng_.below(4) == 0;
  nic::TxPacket packet;
  packet.header = header;
  packet.payload = payload.data();
  if (forges || header.payload_bytes > limits::kFragmentBytesMax) {
    packet.tag = wire::make_tag(session_->tag, header, payload.data());
  } else {
    seal.seal(session_->tag, packet, payload.data());
  }
  rack_.network.inject(endpoint_of(job_.first_host, kPort), session_->pipelines[place.lane].box,
                       test::packet_bytes(packet));
}

// Writes a mask of fragments. Most masks name only fragments that the chunk has.
void Rogue::name_fragments(const Place& place, wire::Header& header,
                           std::vector<std::byte>& payload) {
  uint64_t mask = rng_.next();
  if (rng_.below(4) != 0) mask &= wire::full_mask(fragments(place.chunk));
  if (payload.size() >= sizeof(mask)) std::memcpy(payload.data(), &mask, sizeof(mask));
  const bool is_right = rng_.below(8) != 0 && mask != 0;
  if (is_right) header.fragment = static_cast<uint16_t>(std::countr_zero(mask));
}

// Sets one field to a wrong value.
void Rogue::spoil(wire::Header& header) {
  const auto draw = static_cast<uint32_t>(rng_.next());
  switch (rng_.below(9)) {
    case 0: header.payload_bytes = static_cast<uint16_t>(draw % 2048); return;
    case 1: header.chunk = draw; return;
    case 2: header.chunk = static_cast<uint32_t>(job_.chunks.size()) + draw % 2; return;
    case 3: header.round += 1 + draw % 4; return;
    case 4: header.round = draw; return;
    case 5: header.epoch += draw % 3 - 1; return;
    case 6: header.fragment = static_cast<uint16_t>(draw); return;
    case 7: header.dtype_scale = static_cast<uint16_t>(draw); return;
    default: header.generation = static_cast<uint16_t>(header.generation + draw % 3 - 1); return;
  }
}

void Rogue::push_round() {
  for (uint32_t chunk = 0; chunk < job_.chunks.size(); ++chunk) {
    for (uint32_t fragment = 0; fragment < fragments(chunk); ++fragment) {
      const Place place{session_->chunk_pipeline[chunk], chunk, round_, fragment};
      send(place, header(place, wire::PacketType::kPush), false);
    }
  }
  ++round_;
}

void Rogue::flood() {
  for (uint32_t left = 50; left > 0; --left) {
    const Place place = choose_place();
    send(place, header(place, wire::PacketType::kPull), rng_.below(2) == 0);
  }
}

void Rogue::attack() {
  if (stopped_) return;
  const Place place = choose_place();
  switch (rng_.below(9)) {
    case 0: push_round(); break;
    case 1: flood(); break;
    case 5: send(place, header(place, wire::PacketType::kZeros), false); break;
    case 2: send(place, header(place, wire::PacketType::kPush), true); break;
    case 3: {
      wire::Header spoilt = header(place, wire::PacketType::kPush);
      spoilt.version_type ^= static_cast<uint8_t>(rng_.below(16));  // any type, known or not
      send(place, spoilt, false);
      break;
    }
    case 4: {
      // The rogue reads no results, and pushes the next round before this round has a result.
      push_round();
      push_round();
      break;
    }
    default: {
      wire::Header spoilt =
          header(place, rng_.below(3) == 0 ? wire::PacketType::kPull : wire::PacketType::kPush);
      spoil(spoilt);
      send(place, spoilt, rng_.below(2) == 0);
    }
  }
  rack_.queue.after(1 + rng_.below(kPauseMaxNs), [this] { attack(); });
}

}  // namespace pbox::sim
