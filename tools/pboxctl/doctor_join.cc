#include <algorithm>
#include <chrono>
#include <future>

#include "base/version.h"
#include "nic/socket/port.h"
#include "nic/socket/receive_room.h"
#include "tools/pboxctl/doctor_checks.h"
#include "tools/pboxctl/doctor_job.h"

namespace pboxctl {
namespace {

using pbox::Error;
using pbox::ErrorCode;

pbox::Result<pbox::nic::SocketPort> open_udp(const BoxPath& path) {
  pbox::nic::Endpoint local;
  local.ipv6 = path.data.ipv6;
  return pbox::nic::SocketPort::open({.local = local, .remote = path.data});
}

std::string remedy_for(const Error& error) {
  if (error.code == ErrorCode::kResourceExhausted) {
    return "wait until a job ends, or raise the limit that the message names in the box's "
           "configuration and run systemctl reload pboxd";
  }
  return "see the box's journal: journalctl -u pboxd";
}

std::string here() {
  return "here: PBox " + std::string(pbox::kVersion);
}

// Reports why there is no session: the server is not a box, has another release, or refuses.
void explain(const Error& error, const BoxPath& path, Report& report) {
  switch (error.code) {
    case ErrorCode::kVersionMismatch:
      report.fail("version", error.message, "install one release of PBox on both hosts; " + here());
      return;
    case ErrorCode::kTimeout:
      report.fail("version",
                  path.box() + " accepts connections, but does not answer JOIN: " + error.message,
                  "run ss -ltnp on the box to see which program listens there. If it is pboxd, see "
                  "journalctl -u pboxd. A box with [upstream] waits for the other racks: check the "
                  "upper box instead");
      return;
    case ErrorCode::kBoxLost:
      report.fail(
          "version",
          "the server there is not a box: it closes the connection, or sends data that are not "
          "control messages",
          "check that TCP " + std::to_string(path.port) +
              " is the control port ([control] port, 9541 by default); ss -ltnp on the box names "
              "the program that listens there");
      return;
    default: break;
  }
  report.ok("version", "the box speaks a control protocol that this release knows; " + here());
  report.fail("join", error.message, remedy_for(error));
}

std::string kibibytes(uint64_t bytes) {
  return std::to_string(bytes / 1024) + " KiB";
}

void describe(const BoxPath& path, Report& report) {
  const auto& session = path.session;
  report.ok("version", "box '" + session.box() + "', control protocol " +
                           std::to_string(session.protocol_version()) + "; " + here());
  uint32_t credit_bytes = UINT32_MAX;
  for (const auto& pipeline : session.pipelines()) {
    credit_bytes = std::min(credit_bytes, pipeline.credit_bytes());
  }
  report.ok("join", "granted: " + std::to_string(path.pipeline_count()) + " pipelines at UDP " +
                        udp_ports(path, std::vector<bool>(path.pipeline_count(), true)) +
                        ", credit of " + kibibytes(credit_bytes) + " each, chunks of " +
                        std::to_string(session.chunk_bytes()) + " B in fragments of " +
                        std::to_string(session.fragment_bytes()) + " B");
}

// Checks whether the granted credit fits into the socket buffers of a worker, which the kernel
// limits.
void check_buffers(const BoxPath& path, Report& report) {
  const auto port = open_udp(path);
  if (!port) {
    report.fail("buffers", port.error().message, "ip route get " + path.host);
    return;
  }
  const uint32_t buffer_bytes = port->capabilities().receive_buffer_bytes;
  const uint32_t window_bytes =
      pbox::nic::receivable_bytes(buffer_bytes, path.session.fragment_bytes()) / 4 * 3;
  uint32_t granted_bytes = 0;
  for (const auto& pipeline : path.session.pipelines()) {
    granted_bytes = std::max(granted_bytes, pipeline.credit_bytes());
  }
  const std::string finding = "this host's sockets hold " + kibibytes(buffer_bytes);
  if (window_bytes >= granted_bytes) {
    report.ok("buffers", finding + ", enough for the granted credit");
    return;
  }
  report.warn("buffers",
              finding + " (net.core.rmem_max), so workers here keep " + kibibytes(window_bytes) +
                  " in flight per pipeline instead of the granted " + kibibytes(granted_bytes),
              "sysctl -w net.core.rmem_max=8388608 net.core.wmem_max=8388608, and the same in a "
              "file under /etc/sysctl.d");
}

}  // namespace

std::string BoxPath::box() const {
  if (control.scope_id == 0) return pbox::nic::to_string(control);
  std::string text = "[";
  text.append(pbox::nic::address_string(control)).append("%");
  return text.append(std::to_string(control.scope_id)).append("]:").append(std::to_string(port));
}

std::string udp_ports(const BoxPath& path, const std::vector<bool>& chosen) {
  std::string text;
  uint32_t first = 0, last = 0;
  const auto put = [&] {
    if (first == 0) return;
    text += (text.empty() ? "" : ", ") + std::to_string(first);
    if (last > first) text.append("-").append(std::to_string(last));
  };
  for (size_t index = 0; index < path.pipeline_count(); ++index) {
    if (!chosen[index]) continue;
    const uint32_t port = path.session.pipelines(static_cast<int>(index)).udp_port();
    if (first == 0 || port != last + 1) {
      put();
      first = port;
    }
    last = port;
  }
  put();
  return text;
}

uint32_t kernel_path_mtu(const BoxPath& path) {
  if (!path.uses_sockets()) return path.interface_mtu;
  const auto port = open_udp(path);
  return port ? port->capabilities().mtu : 0;
}

// Finds the data endpoint. It may have another address than control, and another interface.
void find_data(BoxPath& path) {
  path.data = path.control;
  const auto& first = path.session.pipelines(0);
  const auto named = pbox::nic::parse_endpoint(first.address(), 0);
  if (named) path.data = *named;
  path.data.port = static_cast<uint16_t>(first.udp_port());
  if (!named || !path.uses_sockets()) return;
  if (const auto port = open_udp(path)) find_interface(port->local(), path);
}

bool check_join(BoxPath& path, Report& report) {
  constexpr uint64_t kSmallElements = 256;
  auto joining = std::async(std::launch::async, [&] {
    ProbeOptions options = path.probe("join");
    options.chunk_bytes = 0;
    return ProbeJob::join(options, {ProbeTensor{kSmallElements}});
  });
  if (joining.wait_for(std::chrono::seconds(1)) == std::future_status::timeout) {
    report.progress("connected, but no answer yet; waiting for 5 s at most");
  }
  auto job = joining.get();
  if (!job) {
    explain(job.error(), path, report);
    return false;
  }
  path.session = (*job)->session();
  find_data(path);
  describe(path, report);
  if (path.uses_sockets()) check_buffers(path, report);
  return true;
}

}  // namespace pboxctl
