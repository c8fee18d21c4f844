// The part maps of all jobs of the cluster, one key per job in the store. Any box may create a map
// or reassign the parts of a lost box; of two concurrent changes the store accepts one. The leader
// also moves parts off boxes that drain. A map takes effect when the boxes it names see it, and
// through the workers, which go to the owners it names.
//
// When a job ends, the box on which it ends marks its map as over. The map is kept for a while, for
// the next job of that name. A box on which the job (or the next one of that name) still runs
// clears the mark, and states whether the parts may move and how much memory they take: a worker
// that only asks cannot change the map of a running job. The leader deletes maps that have been
// over, or that no box has claimed, for a long time.
//
// Parts go only to boxes that have room for them. A box that is asked for a map, or has to move
// parts, first asks the other boxes for their room. A box that has no room for a part that it was
// given assigns it to another box.
//
// Main thread.
#pragma once

#include <boost/asio/io_context.hpp>
#include <chrono>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "appliance/cluster/box_directory.h"
#include "appliance/cluster/box_reports.h"
#include "appliance/cluster/environment.h"
#include "appliance/cluster/part_map.h"
#include "appliance/control/part_directory.h"

namespace pbox::cluster {

class PartMaps : public control::PartDirectory {
 public:
  struct Options {
    std::string self;  // name of this box
    std::function<uint32_t()> chunk_bytes;
    std::function<const BoxDirectory&()> box_directory;
    // Returns whether some part of the job runs or gathers on this box.
    std::function<bool(const std::string& job)> has_job;
    // Describes the parts of the job that run on this box; nullopt if there are none.
    std::function<std::optional<control::RunningParts>(const std::string& job)> running =
        [](const std::string&) { return std::nullopt; };
    // Returns this box's own report.
    std::function<proto::BoxReport()> report = [] { return proto::BoxReport(); };
    // Called whenever some box may have gained or lost parts.
    std::function<void()> on_change;
    // Called after answers have been given outside of a call to this class.
    std::function<void()> on_answers;
    BoxDirectory::Log log;
    // Returns the loads of the parts that run on this box.
    std::function<std::vector<proto::JobLoad>()> loads = [] {
      return std::vector<proto::JobLoad>();
    };
    // A box that answers loses parts only if most ranks of the job cannot reach it, not just one.
    bool needs_majority = false;
    // How long a map is kept after its job has ended, or while no box has its job.
    std::chrono::milliseconds delete_after = std::chrono::minutes(10);
  };

  // `context` and `store` outlive this object; `store` must have been started.
  PartMaps(boost::asio::io_context& context, Store& store, Options options);
  ~PartMaps() override;

  Result<std::optional<proto::PartPlace>> other_owner(const std::string& job, uint32_t part,
                                                      uint32_t parts) const override;
  void ask(const proto::AskPartMap& question, Answer done) override;
  void ask_box(const std::string& box, const proto::WorkerMessage& question,
               BoxAnswer done) override;
  std::vector<proto::PartPlace> backup_candidates(const std::string& job,
                                                  uint32_t part) const override;
  void reclaim_part(const std::string& job, uint32_t part) override;
  bool hand_back(const std::string& job, uint32_t part) override;
  void claim_snapshot(const std::string& job, std::function<void(const Status&)> done) override;
  void release_snapshot(const std::string& job) override;
  void on_job_over(const std::string& job) override { ended_.insert(job); }
  std::vector<proto::JobLoad> loads() const override { return options_.loads(); }
  bool lists_box(const std::string& box) const override;
  bool has_other_boxes(const std::string& job) const override;

  // Must be called whenever the box directory changes. A part stays on this box while its new owner
  // is not registered.
  void on_boxes_changed() { options_.on_change(); }

  // The other boxes' reports. The leader's Balancer and Scaler ask for them too.
  BoxReports& reports() { return reports_; }

  // Changes the duty of a box; with `as_leader` only if this box still leads. After kUnavailable
  // the caller may try again later.
  void set_duty(const std::string& box, Duty duty, std::function<void(Status)> done,
                bool as_leader = false);
  Duty duty_of(const std::string& box) const;
  // Returns true for a box that loses its parts and gets no new ones.
  bool is_draining(const std::string& box) const { return duty_of(box) != Duty::kTakesParts; }
  // Returns the standbys that are not registered, so that the scale hook or an operator can start
  // them again.
  std::vector<std::string> standbys_switched_off() const;
  // Returns why parts stay on a box that drains, as last stated by the leader; empty if none do.
  std::string drain_obstacle(const std::string& box) const;
  // Returns how many parts the box owns, over all jobs that have not ended.
  size_t parts_of(const std::string& box) const;

  // Returns whether the maps and duties have been read from the store, which takes a moment after
  // the start.
  bool is_loaded() const { return entries_.loaded() && drains_.loaded(); }
  // The maps as last seen in the store, by job, and the revision of one job's map (0: none).
  const std::map<std::string, PartMap>& maps() const { return maps_; }
  int64_t revision(const std::string& job) const;
  // Returns false if the box is of a release that cannot serve the job.
  bool can_serve(const std::string& box, const PartMap& map) const;
  // Returns nullopt if every box has room for the parts that it would gain by `map`; otherwise says
  // which box has no room.
  std::optional<std::string> lacks_room(const std::string& job, const PartMap& map) const;
  // Leader only: replaces the job's map, provided that it has not changed since revision() and that
  // this box still leads. After kUnavailable the map was not replaced, or the outcome is unknown.
  void move(const std::string& job, const PartMap& map, const std::string& why,
            std::function<void(Status)> done);

 private:
  // part_maps_upkeep.cc: changes that no worker or operator requests.
  void tick();
  void evacuate_boxes();
  void state_drain_obstacle(const std::string& box, const std::string& job,
                            const std::string& obstacle);
  void publish_drain_obstacles();
  void update_running_jobs();
  void correct(const std::string& job, const PartMap& map);
  void delete_unused_maps();
  bool is_unused(const std::string& job, const PartMap& map) const;

  void on_maps();
  const PartMap* find(const std::string& job) const;
  // Returns the boxes that may get parts of `job`, without `excluded`. Boxes that do not answer
  // and, with `job_map`, boxes that the job avoids are returned only if there are no others. Boxes
  // that drain or do not speak control protocol `version` are never returned.
  std::vector<CandidateBox> candidates(const std::string& job, const std::string& excluded,
                                       uint32_t version, const PartMap* job_map = nullptr) const;
  // Returns words for an error that name the registered boxes whose release cannot serve the job;
  // "" if there are none.
  std::string boxes_too_old(uint32_t version) const;
  CandidateBox candidate(const BoxRecord& record, const std::string& job) const;
  bool can_be_reused(const PartMap& map, const proto::AskPartMap& question) const;
  // Calls `then` once the other boxes have reported how much room they have.
  void with_reports(std::function<void()> then);
  proto::PartMap to_message(const PartMap& map) const;
  proto::PartMap map_of_this_box() const;
  std::string address_of(const std::string& box) const;
  void answer_all(const std::string& job, const Result<PartMap>& map);
  void make(const proto::AskPartMap& question);
  void change(const std::string& job, const PartMap& map, std::function<void()> on_committed);
  void note_report(const proto::AskPartMap& question);
  void reassign_if_lost(const std::string& job, const std::string& box);
  void reassign_parts_of(const std::string& job, const std::string& box, const std::string& why,
                         bool avoid = false);
  void reassign_now(const std::string& job, const std::string& box, const std::string& why,
                    bool avoid);
  void hand_back_now(const std::string& job, uint32_t part);
  void commit(const std::string& job, const PartMap& map, std::vector<Condition> conditions,
              std::function<void()> on_committed);
  void read_back(const std::string& job, const PartMap& wanted);

  boost::asio::io_context& context_;
  Store& store_;
  Options options_;
  Environment& environment_;
  Timer timer_;
  // By job: requests that wait for a change in progress; an entry without requests also marks such
  // a change.
  std::map<std::string, std::vector<Answer>> waiting_;
  // By job and box: reports of workers that cannot reach the box, not checked by this box yet. Kept
  // only while requests wait.
  struct Reports {
    std::set<uint32_t> ranks;  // ranks that could not reach it for kUnreachableMs
    uint32_t lost_for_ms = 0;  // longest time that any of the workers reported
  };
  std::map<std::pair<std::string, std::string>, Reports> unchecked_;
  std::map<std::string, PartMap> maps_;           // decoded from the store's entries, by job
  std::map<std::string, uint32_t> absent_ticks_;  // by box that has parts but is not registered
  std::set<std::string> ended_;  // jobs that have ended here and are not yet marked as over
  // A map that no box needs: its revision, and the time since which the leader has seen that.
  struct Unused {
    int64_t revision = 0;
    std::chrono::steady_clock::time_point since;
  };
  std::map<std::string, Unused> unused_;  // by job
  uint32_t ticks_ = 0;
  std::map<std::string, int64_t> claimed_;  // by job: revision of this box's snapshot claim
  // By box that drains, and by job: why parts stay there. Leader only.
  std::map<std::string, std::map<std::string, std::string>> obstacles_;
  // Boxes that drain whose obstacles the store does not show yet. Leader only.
  std::set<std::string> unpublished_;
  // Parts that no box had room for: until when they are not handed back again.
  std::map<std::pair<std::string, uint32_t>, std::chrono::steady_clock::time_point> no_room_;
  BoxReports reports_;
  std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);
  Mirror entries_;
  Mirror drains_;
};

}  // namespace pbox::cluster
