// Do packets pass: small ones to every pipeline, which a closed port stops, then the largest, which
// a path narrower than its interfaces stops.
#include <algorithm>

#include "base/clock.h"
#include "tools/pboxctl/doctor_checks.h"
#include "tools/pboxctl/doctor_job.h"
#include "tools/pboxctl/doctor_ladder.h"

namespace pboxctl {
namespace {

using pbox::kNanosPerMilli;
using pbox::Result;

constexpr uint32_t kSmallPathMtu = 640;  // the narrowest that is served: fragments of 512 bytes

// Starts those of `tensors` that are below the job's count, and tells which came back in time. A
// `report` hears of it when that takes long.
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
    report->progress("not everything has come back; waiting for the rest, " +
                     pbox::in_seconds(timeout_ms * kNanosPerMilli) + " at most");
  }
  gather(timeout_ms);
  return came_back;
}

size_t count(const std::vector<bool>& marks) {
  return static_cast<size_t>(std::count(marks.begin(), marks.end(), true));
}

void explain_silence(const BoxPath& path, const std::vector<bool>& answering, Report& report) {
  const std::string silent = udp_ports(path, path.silent);
  std::string finding = "no answer from UDP " + silent;
  if (count(answering) > 0) {
    finding += "; UDP " + udp_ports(path, answering) + " answers";
  } else {
    finding += ": from no pipeline at all, while TCP " + std::to_string(path.port) + " works";
  }
  report.fail("data", finding,
              "a firewall drops it, on the box, here or between: open UDP " + silent +
                  " towards the box, and its answers back to this host (nft list ruleset, "
                  "iptables -nvL). Workers would hang with 'box ... is late'");
}

// What a packet of a full fragment measures as the network counts, IP header included.
uint32_t largest_packet_bytes(const BoxPath& path, const pbox::proto::Session& session) {
  return std::min(session.fragment_bytes(), session.chunk_bytes()) + path.packet_overhead_bytes();
}

// One ladder: which sizes come back.
Result<Bracket> climb(const BoxPath& path, const Bracket& bracket, uint32_t stated_mtu) {
  constexpr uint32_t kRungs = 32;
  constexpr uint32_t kTimeoutMs = 700;  // several times the longest interval between two attempts
  auto sizes = rungs(bracket, kRungs);
  std::vector<ProbeTensor> tensors;
  for (const uint32_t size : sizes) tensors.push_back({size / kRungUnitBytes});
  const auto job = ProbeJob::join(
      {.box = path.box(), .port = path.worker_port, .purpose = "mtu", .path_mtu = stated_mtu},
      tensors);
  if (!job) return job.error();
  const std::string& owners = (*job)->session().chunk_pipeline();
  std::vector<uint32_t> usable_sizes, usable;
  for (uint32_t tensor = 0; tensor < sizes.size(); ++tensor) {
    if (path.silent[static_cast<uint8_t>(owners[tensor])]) continue;
    usable_sizes.push_back(sizes[tensor]);
    usable.push_back(tensor);
  }
  if (usable.empty()) {
    return pbox::Error{pbox::ErrorCode::kUnavailable, "no pipeline that answers owns a chunk"};
  }
  return narrow(bracket, usable_sizes, exchange(**job, usable, kTimeoutMs, nullptr));
}

// The largest payload that passes, given that a small one does and that `fails` does not.
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
                        " bytes are lost, small ones pass: the path is narrower than " + device +
                        " (MTU " + std::to_string(path.interface_mtu) + "). ";
  finding += passing_payload
                 ? "The largest that passes both ways has " + passing + " bytes"
                 : "The largest that passes is not known: " + passing_payload.error().message;
  if (kernel_path_mtu(path) < path.interface_mtu) {
    finding +=
        ". A router has told this host so just now: for some minutes jobs will take "
        "narrower packets and work, and then fail again";
  }
  report.fail("mtu", finding,
              "ip link set dev " + device + " mtu " + passing +
                  " on every worker host (jobs use the narrowest MTU that a worker states), or "
                  "raise the MTU of the switches and of the box's NIC to " +
                  std::to_string(path.interface_mtu));
}

void explain_wide_path(const BoxPath& path, uint32_t packet_bytes, uint32_t path_mtu,
                       Report& report) {
  const std::string finding = "packets of " + std::to_string(packet_bytes) +
                              " bytes, the largest a job would send, pass both ways";
  if (path_mtu >= path.interface_mtu) {
    report.ok("mtu", finding);
    return;
  }
  report.warn("mtu",
              finding + "; but only because the kernel here takes the path to be " +
                  std::to_string(path_mtu) + " wide, and not " + path.interface + "'s " +
                  std::to_string(path.interface_mtu) +
                  ". Unless a route says so, it has that from a router and forgets it after "
                  "minutes: a job that starts then loses every full packet",
              "ip link set dev " + path.interface + " mtu " + std::to_string(path_mtu) +
                  " on every worker host, or raise the MTU along the path");
}

}  // namespace

bool check_data(BoxPath& path, Report& report) {
  constexpr uint32_t kTimeoutMs = 3'000;
  const auto job = join_on_all(
      {.box = path.box(), .port = path.worker_port, .purpose = "data", .path_mtu = kSmallPathMtu},
      path.pipeline_count(), 1);
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
  const std::string finding = "small packets reach every pipeline and come back: UDP ";
  if (count(not_asked) == 0) {
    report.ok("data", finding + udp_ports(path, came_back));
  } else {
    report.warn("data",
                finding + udp_ports(path, came_back) + "; not asked: UDP " +
                    udp_ports(path, not_asked) +
                    ", which other jobs load so much that no chunk goes there",
                "ask again when those jobs have ended");
  }
  return true;
}

bool check_mtu(const BoxPath& path, Report& report) {
  constexpr uint32_t kTimeoutMs = 1'500;
  const uint32_t path_mtu = kernel_path_mtu(path);
  auto job = join_on_all(
      {.box = path.box(), .port = path.worker_port, .purpose = "mtu", .path_mtu = path_mtu},
      path.pipeline_count(), 1);
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
    report.warn("mtu", "not tried: other jobs load the pipelines that answer, no chunk goes there",
                "ask again when those jobs have ended");
    return true;
  }
  const auto came_back = exchange(**job, tensors, kTimeoutMs, &report);
  if (stop_requested) return false;
  const uint32_t packet_bytes = largest_packet_bytes(path, (*job)->session());
  if (count(came_back) == asked) {
    explain_wide_path(path, packet_bytes, path_mtu, report);
    return true;
  }
  report.progress("full packets get lost: searching for the largest that passes");
  job->reset();
  const auto payload = largest_payload(path, packet_bytes - path.packet_overhead_bytes(), path_mtu);
  if (stop_requested) return false;
  explain_narrow_path(path, packet_bytes, payload, report);
  return false;
}

}  // namespace pboxctl
