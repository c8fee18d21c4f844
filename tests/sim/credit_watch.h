// Counts the bytes that a worker has in flight on a lane, from its packets alone. A pushed chunk
// counts until its result is complete or the box has reported that other ranks are late. If there
// is an upper box, it counts until the box has reported that it has all of the push. With delivery
// by pull it counts until its result is announced, and again from the PULL on. With cached reads it
// counts until the box has the push, and requests for data do not count. Each fragment counts as a
// full one, because it takes a slot of the receive ring. The total must never exceed the widest
// window granted so far, except for a single chunk. Such a chunk is sent in portions: its fragments
// that the box has not acknowledged never exceed the window, except for a single fragment. If a job
// pushes zeros, a chunk counts as the packets that it takes, once they are sent.
#pragma once

#include <algorithm>
#include <cstring>
#include <map>
#include <span>
#include <utility>

#include "nic/port.h"
#include "nic/wire/chunk_layout.h"
#include "tests/sim/job_model.h"
#include "tests/sim/sim_keys.h"
#include "tests/sim/violation.h"
#include "worker/protocol/exchange.h"

namespace pbox::sim {

class CreditWatch {
 public:
  CreditWatch(const worker::SessionSpec& session, uint32_t lane, const JobModel& job)
      : session_(session), lane_(lane), job_(job) {
    window_bytes_ = std::min(session.pipelines[lane].credit_bytes, session.window_bytes);
  }

  // With keys: sets a second seal of the worker's end, which opens what the worker opens.
  void set_mirror(SealMirror mirror) { mirror_ = std::move(mirror); }
  void set_generation(uint32_t generation) { generation_ = static_cast<uint16_t>(generation); }

  void received(std::span<const Packet> packets) {
    mirror_.follow(*session_.pipelines[lane_].seal);
    for (const Packet& packet : packets) received(packet);
  }

  // `loses_nothing`: no packet of the rack was ever lost or late.
  void sent(std::span<const nic::TxPacket> packets, bool loses_nothing) {
    uint32_t polls = 0;
    for (const nic::TxPacket& packet : packets) {
      const wire::Header& header = packet.header;
      const auto found = under_way_.find(header.chunk);
      if (header.type() == wire::PacketType::kPull && found != under_way_.end()) {
        polls += found->second.waits ? 1 : 0;
      }
      if (header.type() == wire::PacketType::kPull && found != under_way_.end() &&
          found->second.round == header.round && found->second.announced) {
        found->second.asked = true;
        enter(found->second);
      }
      const bool is_push =
          header.type() == wire::PacketType::kPush || header.type() == wire::PacketType::kZeros;
      if (!is_push) continue;
      if (found != under_way_.end() && found->second.round == header.round) {
        send_fragment(found->second, packet);
        continue;
      }
      const auto done = done_.find(header.chunk);
      require(done == done_.end() || wire::round_distance(header.round, done->second) > 0, [&] {
        return "chunk " + std::to_string(header.chunk) + " round " + std::to_string(header.round) +
               " is pushed although its result is complete: the buffer no longer belongs to the "
               "worker";
      });
      Chunk& chunk = under_way_[header.chunk];
      chunk = {.round = header.round,
               .bytes = job_.wire_bytes(header.chunk, header.round),
               .fragment_bytes =
                   job_.fragment_bytes(header.chunk, header.round, session_.fragment_bytes)};
      const Said& said = said_[header.chunk];
      if (reads_cached(chunk) && said.round == header.round) chunk.result_mask = said.received_mask;
      enter(chunk);
      send_fragment(chunk, packet);
    }
    // A poll asks for two chunks, or for twice as many if the previous poll crossed a result in
    // flight.
    constexpr uint32_t kPollsMax = 4;
    require(polls <= kPollsMax || !loses_nothing, [&] {
      return "polls: a rank asks at once for " + std::to_string(polls) +
             " chunks that wait for other ranks, although nothing is ever lost";
    });
  }

 private:
  struct Chunk {
    uint32_t round = 0;
    uint32_t bytes = 0;
    uint32_t fragment_bytes = 1;
    uint64_t sent_mask = 0, received_mask = 0;  // fragments of the push, and those the box has
    uint64_t named_mask = 0;                    // fragments that a ZEROS packet has named
    uint64_t charged_bytes = 0;                 // this chunk's part of outstanding_bytes_
    uint64_t result_mask = 0;
    uint32_t result_round = 0;
    bool in_window = false;
    bool waits = false;  // the box has the push, and other ranks are late
    bool announced = false;
    bool asked = false;        // the announced result has been asked for
    bool awaits_full = false;  // weights in full are arriving, in place of a delta
  };

  // The box's reports about a push that an earlier session began and this session has not yet sent.
  struct Said {
    uint32_t round = 0;
    uint64_t received_mask = 0;
  };

  uint64_t cost(const Chunk& chunk) const {
    const uint64_t packets = job_.options.pushes_zeros
                                 ? packets_of(chunk, chunk.sent_mask)
                                 : wire::fragment_count(chunk.bytes, chunk.fragment_bytes);
    return packets * session_.fragment_bytes;
  }

  static uint64_t packets_of(const Chunk& chunk, uint64_t fragments) {
    return static_cast<uint64_t>(__builtin_popcountll(fragments & ~chunk.named_mask)) +
           ((fragments & chunk.named_mask) != 0 ? 1 : 0);
  }

  void send_fragment(Chunk& chunk, const nic::TxPacket& packet) {
    const wire::Header& header = packet.header;
    uint64_t fragments = uint64_t{1} << header.fragment;
    if (header.type() == wire::PacketType::kZeros) {
      // An encrypted packet counts as if it named its first fragment only: it is one packet anyway.
      const bool is_plain = (header.flags & wire::flag::kEncrypted) == 0;
      if (is_plain) std::memcpy(&fragments, packet.payload, sizeof(fragments));
      chunk.named_mask |= fragments;
    }
    chunk.sent_mask |= fragments;
    if (chunk.in_window) charge(chunk);
    const uint64_t unheard = packets_of(chunk, chunk.sent_mask & ~chunk.received_mask);
    require(unheard <= std::max<uint64_t>(1, window_bytes_ / session_.fragment_bytes), [&] {
      return "credit: a rank has " + std::to_string(unheard) + " fragments of chunk " +
             std::to_string(header.chunk) + " in flight on a lane whose window is " +
             std::to_string(window_bytes_) + " bytes, " + std::to_string(session_.fragment_bytes) +
             " per fragment";
    });
  }

  void received(const Packet& packet) {
    wire::Parsed parsed;
    const wire::Header& header = parsed.header;
    const bool sound = wire::parse(packet.bytes.data(), static_cast<uint32_t>(packet.bytes.size()),
                                   parsed) == wire::Reject::kNone &&
                       header.spi == (session_.pipelines[lane_].spi | wire::kSpiToWorker) &&
                       mirror_.open(session_.tag, parsed, room_.data()) &&
                       header.epoch == session_.epoch && header.generation == generation_;
    if (!sound) return;
    const uint64_t credit = uint64_t{header.credit} * limits::kCreditUnitBytes;
    window_bytes_ = std::max(window_bytes_, std::min<uint64_t>(credit, session_.window_bytes));
    const bool is_challenge = header.type() == wire::PacketType::kStatus &&
                              header.payload_bytes == sizeof(wire::Challenge);
    if (is_challenge) return;  // says nothing about the chunk
    const auto found = under_way_.find(header.chunk);
    if (found == under_way_.end()) {
      if (header.type() == wire::PacketType::kStatus) {
        said_[header.chunk] = {header.round, status_of(parsed).received_mask};
      }
      return;
    }
    Chunk& chunk = found->second;
    const uint64_t all = wire::full_mask(wire::fragment_count(chunk.bytes, chunk.fragment_bytes));
    const bool is_result =
        header.type() == wire::PacketType::kResult || header.type() == wire::PacketType::kZeros;
    if (is_result && answers(chunk, header)) {
      const bool is_full = job_.has_deltas(header.chunk) && (header.dtype_scale & 15) == 0;
      if (is_full && std::exchange(chunk.awaits_full, true) == false) chunk.result_mask = 0;
      if (is_full != chunk.awaits_full) return;  // a delta is of no use once weights arrive
      chunk.result_mask |= covered(parsed);
      // A result that answers this push shows that the box has applied this fragment of it.
      if (reads_cached(chunk)) chunk.received_mask |= uint64_t{1} << header.fragment;
      if (chunk.result_mask == (is_full ? full_mask_of(header.chunk) : all)) finish(header.chunk);
    } else if (header.type() == wire::PacketType::kStatus && header.round == chunk.round) {
      const wire::StatusPayload status = status_of(parsed);
      chunk.received_mask |= status.received_mask;
      if (reads_cached(chunk)) {
        chunk.result_mask |= status.received_mask & all;
        if (chunk.result_mask == all) finish(header.chunk);
        return;
      }
      const bool is_done = session_.delivery == wire::Delivery::kPull && !chunk.announced &&
                           wire::round_distance(status.finished_round, header.round) > 0;
      chunk.announced = chunk.announced || is_done;
      const bool is_whole = !chunk.announced && (all & ~status.received_mask) == 0;
      chunk.waits = is_whole && status.missing_workers > 0;
      if (chunk.waits || is_done || (is_whole && session_.has_upper_box)) leave(chunk);
    }
  }

  // Returns the bits of all fragments of a chunk whose weights are sent in full.
  uint64_t full_mask_of(uint32_t id) const {
    const auto bytes = static_cast<uint32_t>(job_.chunks[id].elements * sizeof(float));
    return wire::full_mask(wire::fragment_count(bytes, session_.fragment_bytes));
  }

  // Returns the bits of the fragments that a RESULT or ZEROS packet covers.
  static uint64_t covered(const wire::Parsed& parsed) {
    const wire::Header& header = parsed.header;
    if (header.type() == wire::PacketType::kZeros) {
      uint64_t fragments = 0;
      std::memcpy(&fragments, parsed.payload, sizeof(fragments));
      return fragments;
    }
    wire::RowsHead head{.fragments = 1};
    if ((header.flags & wire::flag::kRows) != 0) std::memcpy(&head, parsed.payload, sizeof(head));
    return wire::full_mask(head.fragments) << header.fragment;
  }

  static wire::StatusPayload status_of(const wire::Parsed& parsed) {
    wire::StatusPayload status;
    std::memcpy(&status, parsed.payload, sizeof(status));
    return status;
  }

  bool reads_cached(const Chunk& chunk) const {
    return session_.sync.reads == wire::Reads::kCached && chunk.round > 0;
  }

  // Returns whether this RESULT answers the push in flight, by the rules of the tensor's model.
  bool answers(Chunk& chunk, const wire::Header& header) const {
    if (chunk.announced && !chunk.asked) return false;  // the worker ignores it
    const wire::SyncModel model = job_.options.sync_of(job_.chunks[header.chunk].tensor).model;
    // Any result of the push's round or a later one answers. The fragments of a result must all be
    // of the newest round received.
    if (model == wire::SyncModel::kDrop) {
      const uint32_t least = chunk.result_mask != 0 ? chunk.result_round : chunk.round;
      if (wire::round_distance(header.round, least) < 0) return false;
      if (header.round != chunk.result_round) chunk.result_mask = 0;
      chunk.result_round = header.round;
      return true;
    }
    if (chunk.round == 0 || !wire::applies_on_arrival(model)) return header.round == chunk.round;
    return header.applied() == chunk.round + 1;
  }

  void finish(uint32_t id) {
    const auto found = under_way_.find(id);
    leave(found->second);
    done_[id] = found->second.round;
    under_way_.erase(found);
  }

  void enter(Chunk& chunk) {
    if (chunk.in_window) return;
    chunk.in_window = true;
    ++chunks_;
    charge(chunk);
  }

  void charge(Chunk& chunk) {
    outstanding_bytes_ += cost(chunk) - chunk.charged_bytes;
    chunk.charged_bytes = cost(chunk);
    require(outstanding_bytes_ <= window_bytes_ || chunks_ == 1, [&] {
      std::string text = "credit: a rank has " + std::to_string(outstanding_bytes_) +
                         " bytes in flight on a lane whose window is " +
                         std::to_string(window_bytes_) + ", chunks";
      for (const auto& [id, other] : under_way_) {
        if (other.in_window) text.append(" ").append(std::to_string(id));
      }
      return text + " of spi " + std::to_string(session_.pipelines[lane_].spi);
    });
  }

  void leave(Chunk& chunk) {
    if (!chunk.in_window) return;
    chunk.in_window = false;
    outstanding_bytes_ -= std::exchange(chunk.charged_bytes, 0);
    --chunks_;
  }

  const worker::SessionSpec session_;
  SealMirror mirror_;
  std::vector<std::byte> room_ = std::vector<std::byte>(limits::kFragmentBytesMax);
  uint16_t generation_ = session_.generation;
  uint32_t lane_;
  const JobModel& job_;
  uint64_t window_bytes_ = 0;
  uint64_t outstanding_bytes_ = 0;
  uint32_t chunks_ = 0;
  std::map<uint32_t, Chunk> under_way_;
  std::map<uint32_t, Said> said_;
  std::map<uint32_t, uint32_t> done_;  // by chunk, the last round whose result is complete
};

}  // namespace pbox::sim
