// The box's views as JSON text: the one place that names the fields of /api/v1. Pure; a text that
// is not UTF-8 is mended, not refused.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "appliance/admin/source.h"

namespace pbox::appliance {

// {"policy": "explicit" | "forward-order" | "fifo"}, as POSTed; the error says what is wrong.
Result<wire::PriorityPolicy> parse_priority_policy(std::string_view body);
// {"seconds": 5}
Result<double> parse_trace_seconds(std::string_view body);
Result<double> parse_snapshot_timeout(std::string_view body);
// {"draining": true}
Result<bool> parse_draining(std::string_view body);

// Empty: ready. Else why joins are not taken now.
std::string not_ready_reason(const BoxView& box);

std::string health_json(const BoxView& box);
std::string readiness_json(const BoxView& box);
std::string box_json(const BoxView& box, const std::vector<PipelineView>& pipelines);
std::string boxes_json(const ClusterView& cluster);
std::string snapshot_json(const SnapshotView& view);
std::string trace_json(const TraceView& trace);           // README.md says what is in it
std::string jobs_json(const std::vector<JobView>& jobs);  // {"jobs": [...]}
std::string job_json(const JobView& job);                 // one element of that list

std::string stragglers_json(const std::vector<StragglerView>& jobs);  // {"jobs": [...]}

// Why parts of jobs moved, or did not; `leader`: of the cluster, empty if it is not known.
std::string balancing_json(const cluster::BalancingView& balancing, const std::string& leader);

}  // namespace pbox::appliance
