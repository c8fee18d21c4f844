#include <nlohmann/json.hpp>

#include "appliance/admin/json_view.h"

namespace pbox::admin {
namespace {

using Json = nlohmann::ordered_json;

// Returns null for an unknown value: a rank that was never late has no worst place.
Json known(bool is_known, const Json& value) {
  return is_known ? value : Json(nullptr);
}

Json awaited_object(const control::AwaitedView& awaited) {
  const bool heard = awaited.last_packet_age_s >= 0;
  return {{"rank", awaited.rank},
          {"peer", awaited.peer},
          {"state", awaited.state},
          {"waited_seconds", awaited.waited_s},
          {"last_packet_age_seconds", known(heard, awaited.last_packet_age_s)},
          {"tensor", awaited.place.tensor},
          {"round", awaited.place.round}};
}

Json rank_object(const control::LateRankView& rank) {
  const bool was_late = rank.worst_late_s > 0;
  return {{"rank", rank.rank},
          {"peer", rank.peer},
          {"state", rank.state},
          {"last_arrivals", rank.last_arrivals},
          {"last_share", rank.last_share},
          {"late_seconds", rank.late_s},
          {"worst_late_seconds", rank.worst_late_s},
          {"worst_age_seconds", known(was_late, rank.worst_age_s)},
          {"worst_tensor", known(was_late, rank.worst.tensor)},
          {"worst_round", known(was_late, rank.worst.round)}};
}

Json tensor_object(const control::LateTensorView& tensor) {
  return {{"tensor", tensor.tensor},
          {"late_seconds", tensor.late_s},
          {"worst_late_seconds", tensor.worst_late_s},
          {"worst_rank", tensor.worst_rank},
          {"worst_round", tensor.worst_round}};
}

Json round_object(const control::LateRoundView& round) {
  return {{"round", round.round},     {"chunks", round.chunks},       {"age_seconds", round.age_s},
          {"seconds", round.seconds}, {"late_seconds", round.late_s}, {"rank", round.rank},
          {"tensor", round.tensor}};
}

template <typename View>
Json objects_of(const std::vector<View>& views, Json (*object)(const View&)) {
  Json list = Json::array();
  for (const View& view : views) list.push_back(object(view));
  return list;
}

}  // namespace

std::string stragglers_json(const std::vector<control::StragglerView>& jobs) {
  Json list = Json::array();
  for (const control::StragglerView& job : jobs) {
    list.push_back({{"job", job.job},
                    {"state", job.state},
                    {"world_size", job.world_size},
                    {"chunk_rounds", job.chunk_rounds},
                    {"awaited", objects_of(job.awaited, awaited_object)},
                    {"ranks", objects_of(job.ranks, rank_object)},
                    {"tensors", objects_of(job.tensors, tensor_object)},
                    {"rounds", objects_of(job.rounds, round_object)}});
  }
  const Json object = {{"jobs", std::move(list)}};
  // The default error handler throws on a byte that is not UTF-8.
  return object.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
}

}  // namespace pbox::admin
