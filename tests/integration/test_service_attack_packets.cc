// Attacks on the data path of a box with keys, by somebody who sees and copies every packet. The
// box drops them without an answer, its state is as it was before, and the rounds of the job that
// trains meanwhile are exact.
#include <arpa/inet.h>
#include <linux/if_ether.h>
#include <netinet/ip.h>
#include <netinet/udp.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <catch2/catch.hpp>
#include <cstring>
#include <fstream>
#include <iterator>
#include <sstream>

#include "base/clock.h"
#include "base/rng.h"
#include "nic/wire/tag.h"
#include "tests/support/attacked_site.h"
#include "tests/support/packet_bytes.h"
#include "tests/support/wire.h"

namespace pbox::test {
namespace {

using Bytes = std::vector<std::byte>;

constexpr int kListenMs = 200;
constexpr char kStrangersAddress[] = "127.0.0.2";

// A packet of the honest ranks on its way, as the loopback interface shows it.
struct Heard {
  Bytes bytes;
  uint16_t from_port = 0, to_port = 0;

  wire::Header header() const {
    wire::Header header;
    std::memcpy(&header, bytes.data(), sizeof(header));
    return header;
  }
  bool is_to_box() const { return (header().spi & wire::kSpiToWorker) == 0; }
};

sockaddr_in address_of(const char* host, uint16_t port) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(port);
  REQUIRE(inet_pton(AF_INET, host, &address.sin_addr) == 1);
  return address;
}

// Returns the datagrams that the kernel has dropped since the port's sockets were opened, because
// they had no room for them.
uint64_t dropped_at(uint16_t port) {
  std::ifstream sockets("/proc/net/udp");
  std::string line;
  std::getline(sockets, line);  // the names of the columns
  uint64_t dropped = 0;
  while (std::getline(sockets, line)) {
    std::istringstream words(line);
    std::vector<std::string> columns{std::istream_iterator<std::string>(words), {}};
    REQUIRE(columns.size() == 13);
    const std::string& address = columns[1];  // hexadecimal: 0100007F:2546
    const auto local = std::stoul(address.substr(address.find(':') + 1), nullptr, 16);
    if (local == port) dropped += std::stoull(columns.back());
  }
  return dropped;
}

// An attacker at the box's wire, with an address of its own.
class Attacker {
 public:
  explicit Attacker(AttackedSite& site)
      : site_(site),
        ports_(site.daemon().data_ports()),
        own_(socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0)),
        raw_(socket(AF_INET, SOCK_RAW | SOCK_CLOEXEC, IPPROTO_RAW)) {
    REQUIRE((own_ >= 0 && raw_ >= 0));
    const sockaddr_in own = address_of(kStrangersAddress, 0);
    REQUIRE(bind(own_, reinterpret_cast<const sockaddr*>(&own), sizeof(own)) == 0);
    overhear();
    before_ = rejected();
    dropped_before_ = dropped();
  }
  ~Attacker() {
    close(own_);
    close(raw_);
  }
  Attacker(const Attacker&) = delete;
  Attacker& operator=(const Attacker&) = delete;

  // Returns the complete packets that were overheard, of both directions.
  const std::vector<Heard>& heard() const { return heard_; }
  const std::vector<uint16_t>& ports() const { return ports_; }

  // Sends from the attacker's own address.
  void send_as_itself(const Bytes& bytes, uint16_t to_port) {
    const sockaddr_in to = address_of("127.0.0.1", to_port);
    sendto(own_, bytes.data(), bytes.size(), 0, reinterpret_cast<const sockaddr*>(&to), sizeof(to));
    ++sent_;
  }
  // Sends with the source address of an honest rank, or of the box.
  void send_as(uint16_t from_port, const Bytes& bytes, uint16_t to_port) {
    const sockaddr_in to = address_of("127.0.0.1", to_port);
    ip above{};
    above.ip_v = 4;
    above.ip_hl = sizeof(above) / 4;
    above.ip_ttl = 64;
    above.ip_p = IPPROTO_UDP;
    above.ip_len = htons(static_cast<uint16_t>(sizeof(ip) + sizeof(udphdr) + bytes.size()));
    above.ip_src = above.ip_dst = to.sin_addr;
    udphdr udp{};
    udp.uh_sport = htons(from_port);
    udp.uh_dport = htons(to_port);
    udp.uh_ulen = htons(static_cast<uint16_t>(sizeof(udphdr) + bytes.size()));
    Bytes packet(sizeof(above) + sizeof(udp) + bytes.size());
    std::memcpy(packet.data(), &above, sizeof(above));
    std::memcpy(packet.data() + sizeof(above), &udp, sizeof(udp));
    if (!bytes.empty())
      std::memcpy(packet.data() + sizeof(above) + sizeof(udp), bytes.data(), bytes.size());
    sendto(raw_, packet.data(), packet.size(), 0, reinterpret_cast<const sockaddr*>(&to),
           sizeof(to));
    ++sent_;
  }
  // Sends the bytes of a packet that was overheard, altered or not, from both addresses.
  void send(const Heard& original, const Bytes& bytes) {
    send_as_itself(bytes, original.to_port);
    send_as(original.from_port, bytes, original.to_port);
  }
  void expect_no_rejects() { expects_rejects_ = false; }

  // Checks that nothing has come back, that the box has rejected each packet that reached it, and
  // that its state and job are unharmed. On a busy machine a socket of the box may have no room for
  // some packets.
  void check() {
    if (expects_rejects_) {
      const bool are_rejected =
          await([this] { return rejected() + dropped() >= before_ + dropped_before_ + sent_; });
      INFO(rejected() - before_ << " of " << sent_ << " packets are rejected, and "
                                << dropped() - dropped_before_ << " were dropped");
      CHECK(are_rejected);
      CHECK(rejected() >= before_ + sent_ / 2);
    }
    const timeval limit{.tv_sec = 0, .tv_usec = kListenMs * 1000};
    REQUIRE(setsockopt(own_, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof(limit)) == 0);
    char byte = 0;
    CHECK(recv(own_, &byte, 1, 0) < 0);
    site_.check();
  }

 private:
  uint64_t dropped() const {
    uint64_t dropped = 0;
    for (const uint16_t port : ports_) dropped += dropped_at(port);
    return dropped;
  }
  uint64_t rejected() const { return site_.daemon().metric("pbox_rejected_packets_total"); }

  // Listens for a while, also to what else is on loopback. The honest ranks' rounds may be over
  // before this process has begun to listen.
  void overhear() {
    const FrameSocket frames("lo");
    const uint64_t deadline_ns = monotonic_ns() + kDeadlineMs * kNanosPerMilli;
    for (;;) {
      const uint64_t end_ns = monotonic_ns() + kListenMs * kNanosPerMilli;
      while (monotonic_ns() < end_ns) {
        if (const auto frame = frames.receive(kListenMs)) add(frame->bytes);
      }
      if (heard_.size() >= 200) return;
      REQUIRE(monotonic_ns() < deadline_ns);
      site_.begin_more_rounds();
    }
  }
  void add(const std::string& frame) {
    ip above;
    udphdr udp;
    const size_t at_udp = size_t{ETH_HLEN} + sizeof(above);
    if (frame.size() < at_udp + sizeof(udp) + limits::kPacketOverheadBytes) return;
    std::memcpy(&above, frame.data() + size_t{ETH_HLEN}, sizeof(above));
    std::memcpy(&udp, frame.data() + at_udp, sizeof(udp));
    if (above.ip_v != 4 || above.ip_p != IPPROTO_UDP) return;
    const uint16_t from_port = ntohs(udp.uh_sport), to_port = ntohs(udp.uh_dport);
    const auto is_box = [this](uint16_t port) {
      return std::find(ports_.begin(), ports_.end(), port) != ports_.end();
    };
    if (!is_box(from_port) && !is_box(to_port)) return;
    // The kernel passes on several datagrams of one receiver as one (UDP_SEGMENT).
    const auto* bytes = reinterpret_cast<const std::byte*>(frame.data()) + at_udp + sizeof(udp);
    const auto* end = reinterpret_cast<const std::byte*>(frame.data()) + frame.size();
    while (end - bytes >= static_cast<std::ptrdiff_t>(limits::kPacketOverheadBytes)) {
      wire::Header header;
      std::memcpy(&header, bytes, sizeof(header));
      const auto length = std::ptrdiff_t{limits::kPacketOverheadBytes} + header.payload_bytes;
      if (length > end - bytes) return;
      heard_.push_back({{bytes, bytes + length}, from_port, to_port});
      bytes += length;
    }
  }

  AttackedSite& site_;
  std::vector<uint16_t> ports_;
  int own_, raw_;
  std::vector<Heard> heard_;
  uint64_t before_ = 0, dropped_before_ = 0, sent_ = 0;
  bool expects_rejects_ = true;
};

Bytes with_header(Bytes bytes, const wire::Header& header) {
  std::memcpy(bytes.data(), &header, sizeof(header));
  return bytes;
}

std::vector<Heard> to_box(const Attacker& attacker) {
  std::vector<Heard> found;
  for (const Heard& heard : attacker.heard()) {
    if (heard.is_to_box()) found.push_back(heard);
  }
  REQUIRE(found.size() >= 50);
  return found;
}

}  // namespace

TEST_CASE("packets that no honest rank has made, or has made before, change nothing") {
  const std::string encrypts = GENERATE("false", "true");
  AttackedSite site({"--security.encrypt=" + encrypts});
  Attacker attacker(site);
  const std::vector<Heard> pushes = to_box(attacker);
  Rng draws(1);
  SECTION("packets are sent again, from the rank's address and another one") {
    for (const Heard& heard : pushes) attacker.send(heard, heard.bytes);
  }
  SECTION("packets are sent again to the other pipeline") {
    for (const Heard& heard : pushes) {
      for (const uint16_t port : attacker.ports()) {
        if (port != heard.to_port) attacker.send_as(heard.from_port, heard.bytes, port);
      }
    }
  }
  SECTION("one bit is changed, of the header, the payload or the tag") {
    for (const Heard& heard : pushes) {
      Bytes bytes = heard.bytes;
      const uint64_t bit = draws.below(bytes.size() * 8);
      bytes[bit / 8] ^= std::byte{1} << (bit % 8);
      attacker.send(heard, bytes);
    }
    for (uint64_t bit = 0; bit < limits::kHeaderBytes * 8; ++bit) {
      Bytes bytes = pushes[0].bytes;
      bytes[bit / 8] ^= std::byte{1} << (bit % 8);
      attacker.send(pushes[0], bytes);
    }
  }
  SECTION("packets are cut short, or longer") {
    for (size_t length = 1; length < limits::kPacketOverheadBytes + 8; ++length) {
      attacker.send(pushes[0], {pushes[0].bytes.begin(),
                                pushes[0].bytes.begin() + static_cast<std::ptrdiff_t>(length)});
    }
    for (const Heard& heard : pushes) {
      Bytes bytes = heard.bytes;
      bytes.pop_back();
      attacker.send(heard, bytes);
      bytes.resize(bytes.size() + 2);
      attacker.send(heard, bytes);
    }
  }
  SECTION("tags are drawn at random") {
    for (const Heard& heard : pushes) {
      Bytes bytes = heard.bytes;
      for (size_t at = bytes.size() - 16; at < bytes.size(); ++at) {
        bytes[at] = static_cast<std::byte>(draws.next());
      }
      attacker.send(heard, bytes);
    }
  }
  SECTION("tags are checksums, as without keys") {
    for (const Heard& heard : pushes) {
      wire::Header header = heard.header();
      header.flags = 0;
      header.packet_number += 1'000;
      Bytes bytes = with_header(heard.bytes, header);
      const wire::Tag tag =
          wire::make_tag({.payload_crc = true}, header, bytes.data() + sizeof(header));
      std::memcpy(bytes.data() + bytes.size() - tag.size(), tag.data(), tag.size());
      attacker.send(heard, bytes);
    }
  }
  attacker.check();
}

TEST_CASE("packets whose header is changed, or is another packet's, change nothing") {
  const std::string encrypts = GENERATE("false", "true");
  AttackedSite site({"--security.encrypt=" + encrypts});
  Attacker attacker(site);
  const std::vector<Heard> pushes = to_box(attacker);
  Rng draws(1);
  SECTION("packet numbers are raised, up to the largest") {
    for (const Heard& heard : pushes) {
      for (const uint64_t number :
           {heard.header().packet_number + 1'000, uint64_t{1} << 40, UINT64_MAX}) {
        wire::Header header = heard.header();
        header.packet_number = number;
        attacker.send(heard, with_header(heard.bytes, header));
      }
    }
  }
  SECTION("packets claim another generation of keys") {
    for (const Heard& heard : pushes) {
      wire::Header header = heard.header();
      header.flags ^= wire::flag::kKeyPhase;
      attacker.send(heard, with_header(heard.bytes, header));
    }
  }
  SECTION("packets of one session claim to be another's, or nobody's") {
    for (const Heard& heard : pushes) {
      for (const uint32_t spi :
           {pushes[draws.below(pushes.size())].header().spi ^ 1, heard.header().spi ^ 0x0100'0000,
            static_cast<uint32_t>(draws.next())}) {
        wire::Header header = heard.header();
        header.spi = spi & ~wire::kSpiToWorker;
        attacker.send(heard, with_header(heard.bytes, header));
      }
    }
  }
  SECTION("the box's own packets are sent back to it") {
    for (const Heard& heard : attacker.heard()) {
      if (heard.is_to_box()) continue;
      wire::Header header = heard.header();
      header.spi &= ~wire::kSpiToWorker;
      attacker.send_as(heard.to_port, heard.bytes, heard.from_port);
      attacker.send_as(heard.to_port, with_header(heard.bytes, header), heard.from_port);
      attacker.send_as_itself(with_header(heard.bytes, header), heard.from_port);
    }
  }
  SECTION("PULLs and path probes from a stranger bring no chunk") {
    for (const Heard& heard : pushes) {
      wire::Header header = heard.header();
      header.set_type(wire::PacketType::kPull);
      attacker.send(heard, with_header(heard.bytes, header));
      header.payload_bytes = sizeof(wire::PullPayload);
      Bytes bytes(limits::kPacketOverheadBytes + sizeof(wire::PullPayload));
      attacker.send(heard, with_header(bytes, header));
    }
  }
  attacker.check();
}

TEST_CASE("forged packets of the box change nothing at its workers") {
  AttackedSite site;
  Attacker attacker(site);
  attacker.expect_no_rejects();  // the packets go to workers, not to the box
  size_t results = 0;
  for (const Heard& heard : attacker.heard()) {
    if (heard.is_to_box()) continue;
    ++results;
    attacker.send_as(heard.from_port, heard.bytes, heard.to_port);
    Bytes bytes = heard.bytes;
    bytes[limits::kHeaderBytes] ^= std::byte{1};
    attacker.send_as(heard.from_port, bytes, heard.to_port);
    wire::Header header = heard.header();
    header.round += 1;
    header.packet_number += 500;
    attacker.send_as(heard.from_port, with_header(heard.bytes, header), heard.to_port);
  }
  CHECK(results >= 50);
  attacker.check();
}

TEST_CASE("a tenant's own session seals nothing for another one") {
  AttackedSite site;
  site.allow_other_jobs();
  const std::string job = "evil/own";
  SecurePeer peer(site.daemon().control(), site.stranger());
  peer.say(join_of(job));
  const auto answer = peer.heard();
  REQUIRE((answer && answer->has_session()));
  seal::SessionSeal seal = make_seal(peer, answer->session(), job);
  Attacker attacker(site);
  Bytes room(limits::kFragmentBytesMax);
  for (const Heard& heard : to_box(attacker)) {
    nic::TxPacket packet;
    packet.header = heard.header();
    packet.payload = heard.bytes.data() + limits::kHeaderBytes;
    seal.seal({}, packet, room.data());
    attacker.send(heard, packet_bytes(packet));
  }
  attacker.check();
}

TEST_CASE("a flood of forged packets neither stops the honest ranks nor changes anything") {
  AttackedSite site;
  Attacker attacker(site);
  attacker.expect_no_rejects();  // the kernel drops part of the flood
  const std::vector<Heard> pushes = to_box(attacker);
  const uint64_t before = site.daemon().metric("pbox_rejected_packets_total");
  Rng draws(2);
  for (int packet = 0; packet < 100'000; ++packet) {
    const Heard& heard = pushes[draws.below(pushes.size())];
    Bytes bytes = heard.bytes;
    bytes.resize(std::min<size_t>(bytes.size(), 200));
    wire::Header header = heard.header();
    header.packet_number += draws.below(100'000);
    header.payload_bytes = static_cast<uint16_t>(bytes.size() - limits::kPacketOverheadBytes);
    bytes = with_header(bytes, header);
    if (packet % 2 == 0) {
      attacker.send_as_itself(bytes, heard.to_port);
    } else {
      attacker.send_as(heard.from_port, bytes, heard.to_port);
    }
  }
  CHECK(site.daemon().metric("pbox_rejected_packets_total") > before + 1'000);
  attacker.check();
}

}  // namespace pbox::test
