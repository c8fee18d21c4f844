#include <algorithm>
#include <fstream>
#include <iomanip>
#include <iterator>
#include <sstream>

#include "base/clock.h"
#include "nic/wire/chunk_layout.h"
#include "tools/pboxctl/doctor_checks.h"
#include "tools/pboxctl/doctor_job.h"

namespace pboxctl {
namespace {

using pbox::kNanosPerMilli;
using pbox::kNanosPerSecond;

// Keeps every tensor of a job in flight. Each one starts again as soon as it is done, on the
// client's I/O thread.
class Treadmill {
 public:
  explicit Treadmill(ProbeJob& job) : job_(job), steps_(job.tensor_count()) {
    for (uint32_t tensor = 0; tensor < steps_.size(); ++tensor) steps_[tensor] = {this, tensor};
  }

  bool start() {
    for (Step& step : steps_) {
      if (!launch(step)) return false;
    }
    return true;
  }
  void stop() { stopping_ = true; }

 private:
  struct Step {
    Treadmill* treadmill = nullptr;
    uint32_t tensor = 0;
  };

  bool launch(Step& step) {
    const pbox::worker::Operation operation{.tensor = step.tensor,
                                            .input = job_.input(step.tensor).data(),
                                            .output = job_.output(step.tensor).data()};
    return job_.client()
        .start_many({&operation, 1}, {.callback = &Treadmill::done, .user = &step})
        .ok();
  }
  static void done(void* user, uint32_t, pbox_status status) {
    Step& step = *static_cast<Step*>(user);
    if (status == PBOX_OK && !step.treadmill->stopping_) step.treadmill->launch(step);
  }

  ProbeJob& job_;
  std::vector<Step> steps_;
  std::atomic<bool> stopping_ = false;
};

// Returns how many datagrams this host's kernel has dropped because sockets were full, for all
// programs: UdpRcvbufErrors of nstat. 0 if unreadable.
uint64_t receive_buffer_errors(bool ipv6) {
  if (ipv6) {
    std::ifstream file("/proc/net/snmp6");
    uint64_t value = 0;
    for (std::string name; file >> name >> value;) {
      if (name == "Udp6RcvbufErrors") return value;
    }
    return 0;
  }
  // Two lines begin with "Udp:". The first lists names, the second values.
  std::ifstream file("/proc/net/snmp");
  std::vector<std::string> names;
  for (std::string line; std::getline(file, line);) {
    if (line.rfind("Udp:", 0) != 0) continue;
    std::istringstream words(line);
    const std::vector<std::string> fields{std::istream_iterator<std::string>(words), {}};
    for (size_t index = 0; index < names.size() && index < fields.size(); ++index) {
      if (names[index] == "RcvbufErrors") return std::stoull(fields[index]);
    }
    names = fields;
  }
  return 0;
}

struct Rate {
  double seconds = 0;
  uint64_t bytes = 0, packets = 0, retransmitted = 0;
  uint64_t results_lost = 0;  // a lower bound
  uint64_t dropped_here = 0;
  uint32_t rtt_us = 0;

  double gigabits() const { return static_cast<double>(bytes) * 8 / seconds / 1e9; }
  double percent(uint64_t of) const {
    return packets == 0 ? 0 : 100.0 * static_cast<double>(of) / static_cast<double>(packets);
  }
};

// Returns a lower bound of the number of lost results. A result that the worker asked for again
// counts only if the request was needed. A second answer (stale), or a STATUS because the box still
// waits, shows that the result was late and not lost.
uint64_t results_lost(const pbox::worker::Statistics& statistics,
                      const pbox::proto::Session& session) {
  const uint64_t fragments =
      statistics.bytes_pulled / session.chunk_bytes() *
      pbox::wire::fragment_count(session.chunk_bytes(), session.fragment_bytes());
  const uint64_t others =
      statistics.packets_received - std::min(statistics.packets_received, fragments);
  return statistics.probes_sent - std::min(statistics.probes_sent, others);
}

std::string rounded(double value, int digits) {
  std::ostringstream text;
  text << std::fixed << std::setprecision(digits) << value;
  return text.str();
}

// Runs the treadmill until the time is up, or until nothing has come back for a second.
pbox::Status run(ProbeJob& job, uint32_t seconds) {
  constexpr uint64_t kPollMs = 50;
  constexpr uint64_t kStallNs = kNanosPerSecond;
  Treadmill treadmill(job);
  const uint64_t end_ns = pbox::monotonic_ns() + seconds * kNanosPerSecond;
  if (!treadmill.start()) {
    static_cast<void>(job.client().leave());  // before the treadmill is destroyed
    return pbox::Error{pbox::ErrorCode::kBoxLost, job.client().last_error()};
  }
  uint64_t completed = 0;
  uint64_t progress_ns = pbox::monotonic_ns();
  pbox::Status status = pbox::ok_status();
  for (uint64_t now_ns = progress_ns; now_ns < end_ns && !stop_requested;
       now_ns = pbox::monotonic_ns()) {
    std::this_thread::sleep_for(std::chrono::milliseconds(kPollMs));
    const auto report = job.client().report();
    if (report->operations_completed != completed) {
      completed = report->operations_completed;
      progress_ns = now_ns;
    }
    if (report->operations_failed > 0 || now_ns > progress_ns + kStallNs) break;
  }
  treadmill.stop();
  status = job.client().wait_all(static_cast<uint32_t>(kStallNs / kNanosPerMilli));
  static_cast<void>(job.client().leave());
  return status;
}

void judge(const Rate& rate, Report& report) {
  constexpr double kLossPercentMax = 0.1;
  const std::string finding =
      rounded(rate.gigabits(), 2) + " Gb/s each way for " + rounded(rate.seconds, 1) + " s; " +
      std::to_string(rate.retransmitted) + " of " + std::to_string(rate.packets) +
      " packets were sent again (" + rounded(rate.percent(rate.retransmitted), 3) + " %), " +
      std::to_string(rate.results_lost) + " results were lost; the round trip of a chunk takes " +
      std::to_string(rate.rtt_us) + " us";
  if (rate.dropped_here > 0) {
    report.warn("loss",
                finding + ". This host's kernel dropped " + std::to_string(rate.dropped_here) +
                    " datagrams because sockets were full (UdpRcvbufErrors)",
                "enlarge the receive buffers here: sysctl -w net.core.rmem_max=8388608");
  } else if (rate.percent(rate.retransmitted) > kLossPercentMax) {
    report.warn(
        "loss", finding + ". This host's sockets dropped none of them",
        "run nstat -az UdpRcvbufErrors on the box; if it grows, run sysctl -w "
        "net.core.rmem_max=8388608 and restart pboxd. If not, the network drops packets: "
        "see the switch's port counters (drops, pause, errors) and ethtool -S at both ends");
  } else if (rate.percent(rate.results_lost) > kLossPercentMax) {
    report.warn(
        "loss", finding + ". Pushes arrive, but results get lost on the way back",
        "see the counters of the switch's port towards this host (drops, pause, errors) and "
        "ethtool -S here");
  } else {
    report.ok("loss", finding);
  }
}

}  // namespace

bool check_loss(const BoxPath& path, Report& report) {
  constexpr size_t kChunksPerPipeline = 16;  // twice the window
  const auto job = join_on_all(path.probe("loss"), path.pipeline_count(), kChunksPerPipeline);
  if (!job) {
    report.fail("loss", job.error().message, "see the box's journal: journalctl -u pboxd");
    return false;
  }
  report.progress("exchanging at full speed for " + std::to_string(path.seconds) + " s");
  const uint64_t dropped_before = receive_buffer_errors(path.control.ipv6);
  const uint64_t start_ns = pbox::monotonic_ns();
  const pbox::Status status = run(**job, path.seconds);
  const auto statistics = (*job)->client().report()->exchange;
  if (stop_requested) return false;
  if (!status) {
    report.fail("loss", "the exchange stopped: " + status.error().message,
                "see the box's journal (journalctl -u pboxd) and the switch's port counters");
    return false;
  }
  judge({.seconds = static_cast<double>(pbox::monotonic_ns() - start_ns) / 1e9,
         .bytes = statistics.bytes_pulled,
         .packets = statistics.packets_sent,
         .retransmitted = statistics.retransmitted_fragments,
         .results_lost = results_lost(statistics, (*job)->session()),
         .dropped_here = receive_buffer_errors(path.control.ipv6) - dropped_before,
         .rtt_us = statistics.smoothed_rtt_us},
        report);
  return true;
}

}  // namespace pboxctl
