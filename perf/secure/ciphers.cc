// Measures the time to verify a burst of packets that lies in the second-level cache: by
// nic/crypto, by OpenSSL, and by ipsec-mb in several ways (bursts.h).
#include <iomanip>
#include <stdexcept>

#include "base/limits.h"
#include "nic/crypto/cipher.h"
#include "perf/secure/bursts.h"
#include "perf/secure/parts.h"

namespace pbox::perf {
namespace {

constexpr uint32_t kCipherTurns = 101;
constexpr size_t kBurstsPerPass = 20;

void must(bool right) {
  if (!right) throw std::runtime_error("a tag is wrong");
}

// Seals and opens the packets of a burst as the product does.
class Opener {
 public:
  Opener(Burst& burst, crypto::Library library) : burst_(burst) {
    for (const crypto::Keys& keys : burst.keys) {
      auto made = crypto::make_cipher(burst.suite, pages_, library);
      if (!made) throw std::runtime_error(made.error().message);
      (*made)->set_keys(keys);
      ciphers_.push_back(std::move(*made));
    }
  }

  void seal() {
    for (Burst::Packet& packet : burst_.packets) {
      packet.tag = ciphers_[packet.session]->seal(
          packet.header, {packet.payload, burst_.payload_bytes}, packet.payload);
    }
  }
  void open() {
    bool all = true;
    for (const Burst::Packet& packet : burst_.packets) {
      all &= ciphers_[packet.session]->open(packet.header, {packet.payload, burst_.payload_bytes},
                                            packet.tag, room_.data());
    }
    must(all);
  }

 private:
  Burst& burst_;
  crypto::SecretPages pages_;
  std::vector<std::unique_ptr<crypto::Cipher>> ciphers_;
  seal::OpenRoom room_;
};

nlohmann::json measure(crypto::Suite suite, uint32_t payload_bytes, uint32_t turns,
                       std::ostream& report) {
  Burst burst(suite, payload_bytes);
  Opener product(burst, crypto::Library::kFastest);
  Opener openssl(burst, crypto::Library::kOpenSsl);
  product.seal();
  std::vector<Alternative> alternatives;
  const auto add = [&](const char* name, std::function<void()> work) {
    alternatives.push_back({.name = name, .pass = [work = std::move(work)] {
                              for (size_t times = 0; times < kBurstsPerPass; ++times) work();
                            }});
  };
  add("nic/crypto", [&] { product.open(); });
  add("OpenSSL", [&] { openssl.open(); });
  const auto ways = make_ipsec_mb_ways(burst);
  if (ways != nullptr) {
    add("calls", [&] { ways->call(); });
    add("jobs", [&] { must(ways->submit_jobs()); });
    add("bursts", [&] { must(ways->submit_burst()); });
  }
  measure_interleaved(alternatives, turns);
  nlohmann::json figures = {{"suite", name_of(suite)}, {"payload_bytes", payload_bytes}};
  for (const Alternative& one : alternatives) {
    const double ns = median(one.seconds) * 1e9 / (Burst::kPackets * kBurstsPerPass);
    const Spread over_product = spread(ratios(one.seconds, alternatives.front().seconds));
    report << std::setw(10) << payload_bytes << std::setw(6) << name_of(suite) << std::setw(12)
           << one.name << std::fixed << std::setprecision(0) << std::setw(12) << ns;
    print(over_product, report);
    report << std::endl;
    figures["ways"][one.name] = {{"nanoseconds_per_packet", ns},
                                 {"time_over_product", to_json(over_product)}};
  }
  return figures;
}

}  // namespace

nlohmann::json measure_ciphers(const SecureOptions& options, std::ostream& report) {
  report << "   payload  keys         way   ns/packet      time over nic/crypto\n";
  nlohmann::json figures;
  for (const uint32_t payload_bytes :
       {limits::kFragmentBytesJumbo, limits::kFragmentBytesEthernet}) {
    for (const crypto::Suite suite : {crypto::Suite::kGmac256, crypto::Suite::kGcm256}) {
      figures.push_back(
          measure(suite, payload_bytes, given_or(options.turns, kCipherTurns), report));
    }
  }
  return figures;
}

}  // namespace pbox::perf
