#include "tests/sim/forger.h"

#include <cstring>

#include "nic/wire/tag.h"

namespace pbox::sim {
namespace {

// Number of packets that are kept for each port. Once there are that many, a new packet replaces
// one at random, so some are old.
constexpr size_t kKept = 512;
constexpr uint64_t kWindowPackets = 1024;

wire::Header header_of(const std::vector<std::byte>& bytes) {
  wire::Header header;
  std::memcpy(&header, bytes.data(), sizeof(header));
  return header;
}

void set_header(std::vector<std::byte>& bytes, const wire::Header& header) {
  std::memcpy(bytes.data(), &header, sizeof(header));
}

}  // namespace

void Forger::overhear(const Packet& packet) {
  const auto [place, is_new] = arrived_.try_emplace({host_of(packet.to), packet.to.port});
  Arrived& kept = place->second;
  if (is_new) {
    kept.reserve(kKept);
    places_.push_back(&kept);
  }
  if (kept.size() < kKept) {
    kept.push_back(packet);
  } else {
    kept[rng_.below(kKept)] = packet;
  }
}

std::span<const nic::RxPacket> Forger::burst(const nic::Endpoint& to) {
  const auto place = arrived_.find({host_of(to), to.port});
  if (place == arrived_.end()) return {};
  const nic::Endpoint stranger = endpoint_of(UINT16_MAX, 666);
  for (size_t index = 0; index < burst_.size(); ++index) {
    const Forgery kind = draw_kind();
    const bool is_foreign = kind == Forgery::kForeignSession || kind == Forgery::kReflection;
    const Packet& original = is_foreign ? elsewhere() : any(place->second);
    std::vector<std::byte>& bytes = rooms_[index];
    bytes.assign(original.bytes.begin(), original.bytes.end());
    alter(kind, bytes);
    // A forger may send from any address, even its victim's.
    const nic::Endpoint& from = rng_.below(2) == 0 ? original.from : stranger;
    burst_[index] = {bytes.data(), static_cast<uint32_t>(bytes.size()), from};
    ++counts_[static_cast<size_t>(kind)];
  }
  return burst_;
}

Forgery Forger::draw_kind() {
  constexpr uint64_t kReplaysOf16 = 4;
  const uint64_t draw = rng_.below(16);
  if (draw < kReplaysOf16) return Forgery::kReplay;
  return static_cast<Forgery>(rng_.below(static_cast<uint64_t>(Forgery::kCount)));
}

void Forger::flip(std::vector<std::byte>& bytes) {
  const uint64_t bit = rng_.below(bytes.size() * 8);
  bytes[bit / 8] ^= std::byte{1} << (bit % 8);
}

// Puts the payload and tag of another packet behind the header, and corrects the header's length.
void Forger::splice(std::vector<std::byte>& bytes) {
  const std::vector<std::byte>& other = elsewhere().bytes;
  wire::Header header = header_of(bytes);
  if (header_of(other).packet_number == header.packet_number) return flip(bytes);
  header.payload_bytes = header_of(other).payload_bytes;
  bytes.assign(other.begin(), other.end());
  set_header(bytes, header);
}

void Forger::alter_header(Forgery kind, wire::Header& header) {
  switch (kind) {
    case Forgery::kOtherNumber:
      if (rng_.below(8) == 0) {
        header.packet_number = ~header.packet_number;
      } else {
        header.packet_number += 1 + rng_.below(2 * kWindowPackets);
      }
      return;
    case Forgery::kOtherPhase: header.flags ^= wire::flag::kKeyPhase; return;
    case Forgery::kReflection: header.spi ^= wire::kSpiToWorker; return;
    default: return;
  }
}

void Forger::alter(Forgery kind, std::vector<std::byte>& bytes) {
  wire::Header header = header_of(bytes);
  switch (kind) {
    case Forgery::kReplay: return;
    case Forgery::kFlip: return flip(bytes);
    case Forgery::kTruncation: return bytes.resize(rng_.below(bytes.size()));
    case Forgery::kSplice: return splice(bytes);
    case Forgery::kForeignSession: {
      // The packet names a session other than the one that sealed it.
      const uint32_t spi = header_of(elsewhere().bytes).spi;
      if (spi == header.spi) return flip(bytes);
      header.spi = spi;
      return set_header(bytes, header);
    }
    case Forgery::kChecksum: {
      header.flags = static_cast<uint8_t>(header.flags & wire::flag::kLast);
      set_header(bytes, header);
      const wire::Tag tag =
          wire::make_tag({.payload_crc = true}, header, bytes.data() + sizeof(header));
      std::memcpy(bytes.data() + bytes.size() - sizeof(tag), tag.data(), sizeof(tag));
      return;
    }
    case Forgery::kNoise:
      for (size_t at = sizeof(header); at < bytes.size(); ++at) {
        bytes[at] = static_cast<std::byte>(rng_.next());
      }
      return;
    default: alter_header(kind, header); return set_header(bytes, header);
  }
}

}  // namespace pbox::sim
