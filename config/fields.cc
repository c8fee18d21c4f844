#include "config/fields.h"

#include <utility>

#include "config/cpu_list.h"
#include "config/dpdk_device.h"
#include "config/field_makers.h"
#include "config/fields_admin.h"
#include "config/fields_cluster.h"
#include "config/fields_rdma.h"
#include "config/tenant_list.h"

namespace pbox::config {
namespace {

constexpr uint64_t kBufferBytesMin = 64u << 10;
constexpr uint64_t kBufferBytesMax = 1u << 30;  // the kernel doubles it and stores it in an int
constexpr uint64_t kTimeoutMsMin = 10;
constexpr uint64_t kTimeoutMsMax = 24u * 3'600'000;
constexpr uint64_t kMtuMax = 65'536;  // the loopback interface's MTU
constexpr uint64_t kPacketMemoryMibMax = 1u << 20;

constexpr uint64_t kRecordsMin = 4'096;
constexpr uint64_t kSnapshotSecondsMax = 7u * 24 * 3600;
constexpr uint64_t kRecordsMax = 1u << 24;  // 1 GiB for each pipeline

Field box_name() {
  return Field{"box.name",
               "name of this box in logs and metrics; empty: the host name",
               "at most 64 letters, digits, '-', '_' and '.'",
               false,
               [](const Config& config) { return config.box.name; },
               [](Config& config, const std::string& text) {
                 if (!is_box_name(text)) return false;
                 config.box.name = text;
                 return true;
               }};
}

Field log_audit() {
  return Field{"log.audit",
               "file of the audit log, or stderr; empty: no audit log",
               "an absolute path, stderr, or nothing",
               false,
               [](const Config& config) { return config.log.audit; },
               [](Config& config, const std::string& text) {
                 const bool is_path = text.starts_with('/') && !text.ends_with('/');
                 if (!is_plain(text) || (!text.empty() && !is_path && text != "stderr")) {
                   return false;
                 }
                 config.log.audit = text;
                 return true;
               }};
}

Field pipeline_cores() {
  return Field{"pipeline.cores",
               "CPUs that run pipelines, one CPU for each pipeline; empty: all usable CPUs",
               "a list of CPU numbers, each once, such as 2-5,8",
               false,
               [](const Config& config) { return print_cpu_list(config.pipeline.cores); },
               [](Config& config, const std::string& text) {
                 auto cpus = read_cpu_list(text);
                 if (!cpus) return false;
                 config.pipeline.cores = std::move(*cpus);
                 return true;
               }};
}

Field dpdk_devices() {
  return Field{"dpdk.devices",
               "devices that carry data, each with its addresses",
               "items separated by ';', each a device and its addresses, such as 0000:3b:00.0 "
               "10.0.0.1/24 gateway=10.0.0.254 vlan=100",
               false,
               [](const Config& config) { return print_dpdk_devices(config.dpdk.devices); },
               [](Config& config, const std::string& text) {
                 auto read = read_dpdk_devices(text);
                 if (!read.faults.empty()) return false;
                 config.dpdk.devices = std::move(read.devices);
                 return true;
               },
               [](const std::string& text) { return read_dpdk_devices(text).faults; }};
}

Field job_tenants() {
  return Field{
      "jobs.tenants",
      "limits of tenants and their shares of the box; a tenant's jobs are named TENANT/NAME",
      "items separated by ';', each a tenant or '*' and its limits, such as acme weight=3 jobs=10 "
      "memory_mib=4096 sessions=640 connections=80",
      true,
      [](const Config& config) { return print_tenants(config.jobs.tenants); },
      [](Config& config, const std::string& text) {
        auto read = read_tenants(text);
        if (!read.faults.empty()) return false;
        config.jobs.tenants = std::move(read.tenants);
        return true;
      },
      [](const std::string& text) { return read_tenants(text).faults; }};
}

void add_addresses_and_ports(std::vector<Field>& list) {
  list.push_back(box_name());
  list.push_back(address("box.listen", PBOX_MEMBER(box, listen),
                         "address of control and data; 0.0.0.0 or :: for all NICs"));
  list.push_back(number("control.port", PBOX_MEMBER(control, port), 0, kPortMax, Reload::kNo,
                        "TCP port of the workers' control connections; 0: any free port"));
  list.push_back(number(
      "control.join_timeout_s", PBOX_MEMBER(control, join_timeout_s), 1, 86'400, Reload::kYes,
      "time within which all workers of a job must join; workers may set a shorter one"));
  list.push_back(number("control.heartbeat_interval_ms",
                        PBOX_MEMBER(control, heartbeat_interval_ms), kTimeoutMsMin, kTimeoutMsMax,
                        Reload::kNo, "time between two heartbeats of a worker"));
  list.push_back(number("control.worker_dead_after_ms", PBOX_MEMBER(control, worker_dead_after_ms),
                        kTimeoutMsMin, kTimeoutMsMax, Reload::kYes,
                        "a worker is lost after this long without control traffic"));
  list.push_back(number(
      "control.worker_lost_timeout_ms", PBOX_MEMBER(control, worker_lost_timeout_ms), 0,
      kTimeoutMsMax, Reload::kYes, "how long the other workers wait for a lost one to come back"));
  list.push_back(number("control.connections_max", PBOX_MEMBER(control, connections_max), 1,
                        limits::kControlConnectionsMax, Reload::kYes,
                        "maximum number of control connections at a time"));
  add_cluster(list);
  add_upstream(list);
  add_admin(list);
}

void add_data(std::vector<Field>& list) {
  list.push_back(number("data.port_first", PBOX_MEMBER(data, port_first), 0, kPortMax, Reload::kNo,
                        "UDP port of the first pipeline; each further pipeline uses the next port; "
                        "0: any free ports, not with dpdk"));
  list.push_back(
      choice("data.port", PBOX_MEMBER(data, port),
             {{"socket", PortKind::kSocket}, {"dpdk", PortKind::kDpdk}, {"rdma", PortKind::kRdma}},
             3, Reload::kNo,
             "how packets are sent and received: socket, by kernel sockets; dpdk, without the "
             "kernel; rdma, by queue pairs of RDMA devices as well as sockets"));
  list.push_back(number("data.receive_buffer_bytes", PBOX_MEMBER(data, receive_buffer_bytes),
                        kBufferBytesMin, kBufferBytesMax, Reload::kNo,
                        "socket receive buffer of each pipeline"));
  list.push_back(number("data.send_buffer_bytes", PBOX_MEMBER(data, send_buffer_bytes),
                        kBufferBytesMin, kBufferBytesMax, Reload::kNo,
                        "maximum socket send buffer of each pipeline"));
  list.push_back(number("data.mtu", PBOX_MEMBER(data, mtu), 0, kMtuMax, Reload::kNo,
                        "largest IP packet in bytes; 0: as the path allows, or 1500 with dpdk"));
  list.push_back(boolean("data.payload_crc", PBOX_MEMBER(data, payload_crc),
                         "insecure mode: checksum payloads too, not only headers"));
  list.push_back(auto_or_off("data.gso", PBOX_MEMBER(data, gso),
                             "let the kernel or NIC cut large sends into packets"));
  list.push_back(boolean("data.shm", PBOX_MEMBER(data, shm),
                         "with port = socket: let workers of this host send and receive by shared "
                         "memory"));
}

void add_dpdk(std::vector<Field>& list) {
  list.push_back(dpdk_devices());
  list.push_back(boolean("dpdk.no_huge", PBOX_MEMBER(dpdk, no_huge),
                         "keep packets in ordinary pages instead of hugepages, for development"));
  list.push_back(number("dpdk.memory_mib", PBOX_MEMBER(dpdk, memory_mib), 0, kPacketMemoryMibMax,
                        Reload::kNo,
                        "MiB of packet memory on each NUMA node; 0: as much as the plan needs"));
}

void add_machine(std::vector<Field>& list) {
  list.push_back(number("pipeline.count", PBOX_MEMBER(pipeline, count), 0, limits::kPipelinesMax,
                        Reload::kNo,
                        "number of pipelines; 0: one per usable core, as pboxctl plan shows"));
  list.push_back(pipeline_cores());
  list.push_back(choice("pipeline.poll", PBOX_MEMBER(pipeline, poll),
                        {{"adaptive", PollMode::kAdaptive}, {"busy", PollMode::kBusy}}, 2,
                        Reload::kNo,
                        "adaptive: a pipeline sleeps when there is nothing to do; busy: it spins"));
  list.push_back(number("pipeline.spin_us", PBOX_MEMBER(pipeline, spin_us), 0, 1'000'000,
                        Reload::kNo,
                        "with poll = adaptive: longest idle time before a pipeline sleeps"));
  list.push_back(
      choice("pipeline.pin", PBOX_MEMBER(pipeline, pin),
             {{"auto", OnOffAuto::kAuto}, {"on", OnOffAuto::kOn}, {"off", OnOffAuto::kOff}}, 3,
             Reload::kNo,
             "pin each pipeline to its core; auto: not on small machines; with off, there may be "
             "more pipelines than cores"));
  list.push_back(auto_or_off("pipeline.numa", PBOX_MEMBER(pipeline, numa),
                             "keep each pipeline's core, queue and memory on one NUMA node"));
  list.push_back(number("pipeline.window_bytes", PBOX_MEMBER(pipeline, window_bytes), 0,
                        limits::kCreditBytesMax, Reload::kNo,
                        "maximum number of bytes in flight per worker and pipeline; 0: 1 MiB. The "
                        "worker's share of 3/4 of the receive buffer limits it too"));
  list.push_back(boolean("pipeline.rebalance", PBOX_MEMBER(pipeline, rebalance),
                         "move chunks of jobs, while they train, to pipelines of this box that "
                         "finish sooner"));
  list.push_back(fraction("memory.job_share", PBOX_MEMBER(memory, job_share), 0.01, 0.98,
                          Reload::kYes,
                          "share of the box's memory that all jobs together may use"));
  list.push_back(auto_or_off("memory.hugepages", PBOX_MEMBER(memory, hugepages),
                             "use reserved 2 MiB pages where available"));
}

void add_recorder(std::vector<Field>& list) {
  list.push_back(
      folder("recorder.directory", PBOX_MEMBER(recorder, directory),
             "folder of the flight recorder's files, in memory (tmpfs); none: no files"));
  list.push_back(number("recorder.records", PBOX_MEMBER(recorder, records), kRecordsMin,
                        kRecordsMax, Reload::kNo,
                        "number of 64-byte records that each pipeline keeps, one for each packet; "
                        "rounded up to a power of two"));
  list.push_back(number(
      "recorder.late_after_ms", PBOX_MEMBER(recorder, late_after_ms), kTimeoutMsMin, kTimeoutMsMax,
      Reload::kYes, "when a round waits this long for a rank, the recording is saved to a file"));
}

void add_snapshots(std::vector<Field>& list) {
  list.push_back(folder("snapshots.directory", PBOX_MEMBER(snapshots, directory),
                        "folder of jobs' snapshots, on storage that all boxes of the cluster "
                        "share; none: no snapshots"));
  list.push_back(number("snapshots.every_s", PBOX_MEMBER(snapshots, every_s), 0,
                        kSnapshotSecondsMax, Reload::kYes,
                        "seconds between snapshots of each job in mode optimize; 0: only when "
                        "`pboxctl snapshot` asks"));
}

void add_jobs_and_log(std::vector<Field>& list) {
  list.push_back(number("jobs.max", PBOX_MEMBER(jobs, max), 1, limits::kJobsMax, Reload::kYes,
                        "maximum number of jobs at a time"));
  list.push_back(number("jobs.workers_max", PBOX_MEMBER(jobs, workers_max), 1,
                        limits::kWorkersPerJobMax, Reload::kYes,
                        "maximum number of workers of one job"));
  list.push_back(number("jobs.chunks_max", PBOX_MEMBER(jobs, chunks_max), 1,
                        limits::kChunksPerJobMax, Reload::kYes,
                        "maximum number of chunks of one job"));
  list.push_back(number("jobs.chunk_bytes", PBOX_MEMBER(jobs, chunk_bytes), limits::kChunkBytesMin,
                        limits::kChunkBytesMax, Reload::kYes, "bytes per chunk, for new jobs"));
  list.push_back(job_tenants());
  list.push_back(file_path("security.keys", PBOX_MEMBER(security, keys),
                           "folder of this box's keys, made by pboxctl keys box; empty: no keys"));
  list.push_back(
      boolean("security.encrypt", PBOX_MEMBER(security, encrypt),
              "with keys: encrypt the payloads of packets; off: only authenticate them"));
  list.push_back(number("security.key_packets", PBOX_MEMBER(security, key_packets), 1000,
                        uint64_t{1} << 31, Reload::kNo,
                        "with keys: number of packets after which a session changes its key"));
  const Words<OnOffAuto> insecure = {{"auto", OnOffAuto::kAuto},
                                     {"true", OnOffAuto::kOn},
                                     {"false", OnOffAuto::kOff},
                                     {"on", OnOffAuto::kOn},
                                     {"off", OnOffAuto::kOff}};
  list.push_back(choice("security.insecure", PBOX_MEMBER(security, insecure), insecure, 3,
                        Reload::kNo, "run without keys; auto: on loopback only"));
  list.push_back(boolean(
      "security.insecure_off_loopback", PBOX_MEMBER(security, insecure_off_loopback),
      "second consent to run without keys off loopback; with keys, consent to HTTP without TLS"));
  list.push_back(choice("log.level", PBOX_MEMBER(log, level),
                        {{"debug", LogLevel::kDebug},
                         {"info", LogLevel::kInfo},
                         {"warn", LogLevel::kWarn},
                         {"error", LogLevel::kError}},
                        4, Reload::kYes, "lowest level of the messages shown"));
  list.push_back(choice("log.format", PBOX_MEMBER(log, format),
                        {{"text", LogFormat::kText}, {"json", LogFormat::kJson}}, 2, Reload::kNo,
                        "text for people, json for collectors"));
  list.push_back(log_audit());
}

}  // namespace

const std::vector<Field>& fields() {
  static const std::vector<Field> list = [] {
    std::vector<Field> built;
    add_addresses_and_ports(built);
    add_data(built);
    add_dpdk(built);
    add_rdma(built);
    add_machine(built);
    add_recorder(built);
    add_snapshots(built);
    add_jobs_and_log(built);
    return built;
  }();
  return list;
}

std::vector<std::string> refusals(const Field& field, const std::string& text) {
  if (!field.faults) {
    return {field.key + " = " + text + " is not accepted; give " + field.accepts};
  }
  std::vector<std::string> errors;
  for (const auto& fault : field.faults(text)) errors.push_back(field.key + ": " + fault);
  return errors;
}

}  // namespace pbox::config
