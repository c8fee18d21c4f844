// Checks that packets pass. Small ones go to every pipeline, and fail at a closed port. Then the
// largest ones go, and fail at a path that is narrower than its interfaces.
#include <algorithm>

#include "base/clock.h"
#include "tools/pboxctl/doctor_checks.h"
#include "tools/pboxctl/doctor_job.h"
#include "tools/pboxctl/doctor_ladder.h"

namespace pboxctl {
namespace {

using pbox::kNanosPerMilli;
using pbox::Result;

constexpr uint32_t kSmallPathMtu = 640;  // the narrowest MTU that a box serves: 512-byte fragments

// Starts those of `tensors` that are below the job's count, and returns which of them came back in
// time. If that takes long and `report` is not null, prints progress.
std::vector<bool> exchange(ProbeJob& job, const std::vector<uint32_t>& tensors, uint32_t timeout_ms,
                           Report* report) {
  constexpr uint32_t kPatienceMs = 500;
  const uint64_t start_ns = pbox::monotonic_ns();
  std::vector<bool> started, came_back;
  for (const uint32_t tensor : tensors) {
    started.push_back(tensor < job.tensor_count() && job.start(tensor).ok());
  }
  const auto gather = [&](uint32_t within_ms) {
    came_back.clear();
    for (size_t index = 0; index < tensors.size(); ++index) {
      const uint64_t deadline_ns = start_ns + within_ms * kNanosPerMilli;
      came_back.push_back(started[index] && job.wait(tensors[index], deadline_ns).ok());
    }
  };
  gather(std::min(kPatienceMs, timeout_ms));
  if (came_back == started || timeout_ms <= kPatienceMs) return came_back;
  if (report != nullptr) {
    report->progress("not all packets have come back yet; waiting for " +
                     pbox::in_seconds(timeout_ms * kNanosPerMilli) + " at most");
  }
  gather(timeout_ms);
  return came_back;
}

size_t count(const std::vector<bool>& marks) {
  return static_cast<size_t>(std::count(marks.begin(), marks.end(), true));
}

void explain_silence(const BoxPath& path, const std::vector<bool>& answering, Report& report) {
  check_own_routes(path, report);
  const std::string silent = udp_ports(path, path.silent);
  std::string finding = "no answer from UDP " + silent;
  if (count(answering) > 0) {
    finding += "; UDP " + udp_ports(path, answering) + " answers";
  } else {
    finding += ": no pipeline answers, while TCP " + std::to_string(path.port) + " works";
  }
  report.fail("data", finding,
              "a firewall on the box, on this host or between them drops the packets. Open UDP " +
                  silent +
                  " towards the box, and the way back to this host (nft list ruleset, "
                  "iptables -nvL). If one of them has several NICs, a reverse path filter may drop "
                  "what arrives by one: pboxctl doctor on the box checks that as 'routes'. Workers "
                  "would hang with 'box ... is late'");
}

// Returns the size of a packet with a full fragment, IP header included.
uint32_t largest_packet_bytes(const BoxPath& path, const pbox::proto::Session& session) {
  return std::min(session.fragment_bytes(), session.chunk_bytes()) + path.packet_overhead_bytes();
}

// Tries one ladder of sizes and returns the narrower bounds.
Result<Bracket> climb(const BoxPath& path, const Bracket& bracket, uint32_t stated_mtu) {
  constexpr uint32_t kRungs = 32;
  constexpr uint32_t kTimeoutMs = 700;  // several times the longest interval of retransmission
  auto sizes = rungs(bracket, kRungs);
  std::vector<ProbeTensor> tensors;
  for (const uint32_t size : sizes) tensors.push_back({size / kRungUnitBytes});
  const auto job = ProbeJob::join(path.probe("mtu", stated_mtu), tensors);
  if (!job) return job.error();
  const std::string& owners = (*job)->session().chunk_pipeline();
  std::vector<uint32_t> usable_sizes, usable;
  for (uint32_t tensor = 0; tensor < sizes.size(); ++tensor) {
    if (path.silent[static_cast<uint8_t>(owners[tensor])]) continue;
    usable_sizes.push_back(sizes[tensor]);
    usable.push_back(tensor);
  }
  if (usable.empty()) {
    return pbox::Error{pbox::ErrorCode::kUnavailable, "the pipelines that answer own no chunk"};
  }
  return narrow(bracket, usable_sizes, exchange(**job, usable, kTimeoutMs, nullptr));
}

// Returns the largest payload that passes. A small one must pass, and `fails` must not.
Result<uint32_t> largest_payload(const BoxPath& path, uint32_t fails, uint32_t stated_mtu) {
  Bracket bracket{pbox::limits::kFragmentBytesMin, fails};
  while (!bracket.closed() && !stop_requested) {
    const auto narrower = climb(path, bracket, stated_mtu);
    if (!narrower) return narrower.error();
    bracket = *narrower;
  }
  return bracket.passes;
}

void explain_narrow_path(const BoxPath& path, uint32_t packet_bytes,
                         const Result<uint32_t>& passing_payload, Report& report) {
  const std::string passing =
      passing_payload ? std::to_string(*passing_payload + path.packet_overhead_bytes()) : "BYTES";
  const std::string device = path.interface.empty() ? "NIC" : path.interface;
  std::string finding = "full packets of " + std::to_string(packet_bytes) +
                        " bytes are lost, small ones pass: the path is narrower than the MTU " +
                        std::to_string(path.interface_mtu) + " of " + device + ". ";
  finding += passing_payload
                 ? "The largest packet that passes both ways has " + passing + " bytes"
                 : "The largest packet that passes is unknown: " + passing_payload.error().message;
  if (kernel_path_mtu(path) < path.interface_mtu) {
    finding +=
        ". A router has just reported this to this host: for some minutes jobs will use narrower "
        "packets and work, and then fail again";
  }
  report.fail("mtu", finding,
              "ip link set dev " + device + " mtu " + passing +
                  " on every worker host (a job uses the narrowest MTU of its workers), or raise "
                  "the MTU of the switches and of the box's NIC to " +
                  std::to_string(path.interface_mtu));
}

void explain_wide_path(const BoxPath& path, uint32_t packet_bytes, uint32_t path_mtu,
                       Report& report) {
  const std::string finding = "packets of " + std::to_string(packet_bytes) +
                              " bytes, the largest that a job would send, pass both ways";
  if (path_mtu >= path.interface_mtu) {
    report.ok("mtu", finding);
    return;
  }
  report.warn("mtu",
              finding + ", but only because the kernel here assumes a path MTU of " +
                  std::to_string(path_mtu) + " instead of " + path.interface + "'s " +
                  std::to_string(path.interface_mtu) +
                  ". Unless a route sets it, the kernel learned it from a router and forgets it "
                  "after minutes; a job that starts then loses every full packet",
              "ip link set dev " + path.interface + " mtu " + std::to_string(path_mtu) +
                  " on every worker host, or raise the MTU along the path");
}

}  // namespace

bool check_data(BoxPath& path, Report& report) {
  constexpr uint32_t kTimeoutMs = 3'000;
  const auto job = join_on_all(path.probe("data", kSmallPathMtu), path.pipeline_count(), 1);
  if (!job) {
    report.fail("data", job.error().message, "journalctl -u pboxd on the box");
    return false;
  }
  const auto tensors = (*job)->tensor_of_pipelines();
  const auto came_back = exchange(**job, tensors, kTimeoutMs, &report);
  std::vector<bool> not_asked;
  for (size_t index = 0; index < tensors.size(); ++index) {
    not_asked.push_back(tensors[index] == (*job)->tensor_count());
    path.silent.push_back(!came_back[index] && !not_asked[index]);
  }
  if (stop_requested) return false;
  if (count(path.silent) > 0) {
    explain_silence(path, came_back, report);
    return count(came_back) > 0;
  }
  const std::string finding = "small packets reach the pipelines and come back: UDP ";
  if (count(not_asked) == 0) {
    report.ok("data", finding + udp_ports(path, came_back));
  } else {
    report.warn("data",
                finding + udp_ports(path, came_back) + "; not checked: UDP " +
                    udp_ports(path, not_asked) +
                    ", which other jobs load so much that the box places no chunk there",
                "run this again when those jobs have ended");
  }
  return true;
}

bool check_mtu(const BoxPath& path, Report& report) {
  constexpr uint32_t kTimeoutMs = 1'500;
  const uint32_t path_mtu = kernel_path_mtu(path);
  auto job = join_on_all(path.probe("mtu", path_mtu), path.pipeline_count(), 1);
  if (!job) {
    report.fail("mtu", job.error().message, "journalctl -u pboxd on the box");
    return false;
  }
  auto tensors = (*job)->tensor_of_pipelines();
  for (size_t index = 0; index < tensors.size(); ++index) {
    if (path.silent[index]) tensors[index] = static_cast<uint32_t>((*job)->tensor_count());
  }
  const size_t asked =
      static_cast<size_t>(std::count_if(tensors.begin(), tensors.end(), [&](uint32_t each) {
        return each < (*job)->tensor_count();
      }));
  if (asked == 0) {
    report.warn(
        "mtu",
        "not checked: other jobs load the pipelines that answer, and the box places no chunk "
        "there",
        "run this again when those jobs have ended");
    return true;
  }
  const auto came_back = exchange(**job, tensors, kTimeoutMs, &report);
  if (stop_requested) return false;
  const uint32_t packet_bytes = largest_packet_bytes(path, (*job)->session());
  if (count(came_back) == asked) {
    explain_wide_path(path, packet_bytes, path_mtu, report);
    return true;
  }
  report.progress("full packets get lost; searching for the largest that passes");
  job->reset();
  const auto payload = largest_payload(path, packet_bytes - path.packet_overhead_bytes(), path_mtu);
  if (stop_requested) return false;
  explain_narrow_path(path, packet_bytes, payload, report);
  return false;
}

}  // namespace pboxctl
