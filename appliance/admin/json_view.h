// Turns the box's views into JSON text. Only this header's functions name the fields of /api/v1.
// Pure; bytes that are not UTF-8 are replaced, not refused.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "appliance/admin/source.h"

namespace pbox::admin {

// These parse the body of a POST. The error of a body that is not accepted says what to send.
// {"policy": "explicit" | "forward-order" | "fifo"}
Result<wire::PriorityPolicy> parse_priority_policy(std::string_view body);
// {"sync": "ssp:3"} or {"sync": "ssp:3", "tensors": "embedding.*"}
Result<control::SyncChange> parse_sync_change(std::string_view body);
// {"seconds": 5}
Result<double> parse_trace_seconds(std::string_view body);
// {"timeout_s": 60}
Result<double> parse_snapshot_timeout(std::string_view body);
// {"draining": true}, with "standby": true or without
Result<cluster::Duty> parse_duty(std::string_view body);

// Returns why the box accepts no JOIN now; empty if it is ready.
std::string not_ready_reason(const BoxView& box);

std::string health_json(const BoxView& box);
std::string readiness_json(const BoxView& box);
std::string box_json(const BoxView& box, const std::vector<PipelineView>& pipelines);
std::string boxes_json(const ClusterView& cluster);
std::string snapshot_json(const control::SnapshotView& view);
std::string trace_json(const control::TraceView& trace);           // README.md documents the fields
std::string jobs_json(const std::vector<control::JobView>& jobs);  // {"jobs": [...]}
std::string job_json(const control::JobView& job);                 // one element of that list

std::string history_json(const HistoryView& history);
std::string stragglers_json(const std::vector<control::StragglerView>& jobs);  // {"jobs": [...]}

// Returns why parts of jobs moved, or did not. `leader` is the name of the cluster's leader; empty
// if it is unknown.
std::string balancing_json(const cluster::BalancingView& balancing, const std::string& leader);

}  // namespace pbox::admin
