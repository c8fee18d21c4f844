// The plans of all jobs of the cluster, one key each, in the store: who has which part. Any box may
// make a plan, or give away the parts of one that is gone; the store lets one of two changes
// through. The box that leads also empties boxes that drain. What a plan says is carried out by the
// boxes it names, as each hears of it, and by the workers, which go where the parts are.
//
// The plan of a job that is over stays for a while, for the next job of that name, and is then
// forgotten: a box where it ended says so in the plan, one where it (or the next one) lives takes
// that back, and the leader deletes what has been over for long.
//
// Main thread.
#pragma once

#include <boost/asio/io_context.hpp>
#include <boost/asio/steady_timer.hpp>
#include <chrono>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "appliance/cluster/box_directory.h"
#include "appliance/cluster/part_map.h"
#include "appliance/control/part_directory.h"

namespace pbox::cluster {

// As the boxes' clocks have it: for people, and for what need not be exact.
uint64_t unix_seconds();

class PartMaps : public appliance::PartDirectory {
 public:
  struct Options {
    std::string self;  // this box's name
    std::function<uint32_t()> chunk_bytes;
    std::function<const BoxDirectory&()> membership;
    std::function<bool(const std::string& job)> has_job;  // this box, some part of it
    // Whenever a box may have got or lost parts.
    std::function<void()> on_change;
    // Answers have been given outside of a call to this class.
    std::function<void()> on_answers;
    BoxDirectory::Log log;
    std::chrono::milliseconds forget_after = std::chrono::minutes(10);  // that it is over
  };

  // `context` and `store`, which was started, outlive the plans.
  PartMaps(boost::asio::io_context& context, Store& store, Options options);
  ~PartMaps() override;

  Result<std::optional<proto::PartPlace>> elsewhere(const std::string& job, uint32_t part,
                                                    uint32_t parts) const override;
  void ask(const proto::AskPartMap& question, Answer done) override;
  void ask_box(const std::string& box, const proto::WorkerMessage& question,
               BoxAnswer done) override;
  std::vector<proto::PartPlace> backups(const std::string& job, uint32_t part) const override;
  void take_back(const std::string& job, uint32_t part) override;
  void on_job_over(const std::string& job) override { ended_.insert(job); }
  bool has_others(const std::string& job) const override;

  // Boxes that drain have no part for long, and get none. kUnavailable: try again later.
  void set_draining(const std::string& box, bool draining, std::function<void(Status)> done);
  bool is_draining(const std::string& box) const;
  // Of a box, in all jobs that are not over.
  size_t parts_of(const std::string& box) const;

  // As last heard, by job, and the revision of one; 0: there is none.
  const std::map<std::string, PartMap>& plans() const { return plans_; }
  int64_t revision(const std::string& job) const;
  // The leader's: parts go where `plan` has them, if nobody has changed the job's plan since
  // revision() and this box leads still. kUnavailable: not done, or nobody knows.
  void move(const std::string& job, const PartMap& plan, const std::string& why,
            std::function<void(Status)> done);

 private:
  void on_plans();
  void tick();
  void empty_boxes();
  void note_ends();
  void set_over(const std::string& job, bool is_over);
  void forget_plans();
  const PartMap* find(const std::string& job) const;
  std::vector<CandidateBox> candidates(const std::string& but,
                                       const PartMap* of_job = nullptr) const;
  proto::PartMap describe(const PartMap& plan) const;
  proto::PartMap here_alone() const;
  std::string address_of(const std::string& box) const;
  void answer_all(const std::string& job, const Result<PartMap>& plan);
  void make(const proto::AskPartMap& question);
  void change(const std::string& job, const PartMap& plan, std::function<void()> on_committed);
  void replace_if_gone(const proto::AskPartMap& question);
  void give_away_parts(const std::string& job, const std::string& box, const std::string& why,
                       bool avoid = false);
  void commit(const std::string& job, const PartMap& plan, std::vector<Condition> conditions,
              std::function<void()> on_committed);
  void read_back(const std::string& job, const PartMap& wanted);

  boost::asio::io_context& context_;
  Store& store_;
  Options options_;
  boost::asio::steady_timer timer_;
  std::map<std::string, std::vector<Answer>> waiting_;  // by job: who waits for a change under way
  std::map<std::string, PartMap> plans_;                // as plan_entries_, by job
  std::map<std::string, uint32_t> absent_ticks_;        // by box that has parts and is not there
  std::set<std::string> ended_;                         // jobs, here; not yet said in their plans
  // By job that is over: since when the leader has seen the plan of this revision.
  struct Over {
    int64_t revision = 0;
    std::chrono::steady_clock::time_point since;
  };
  std::map<std::string, Over> over_;
  std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);
  Mirror plan_entries_;
  Mirror drains_;
};

}  // namespace pbox::cluster
