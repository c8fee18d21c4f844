// A snapshot of a job, run by the box that was asked to take it. It asks every box that owns a part
// to cut the part at the same round, and repeats the question until all parts are written. If some
// chunk has passed the cut before its box hears of it, a later cut is tried. Used on the control
// thread.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "appliance/snapshot/store.h"
#include "base/result.h"
#include "nic/wire/control.pb.h"

namespace pbox::control {

struct SnapshotView {
  std::string job;
  // "starting", "cutting", "writing", "done" or "failed"; stable names.
  const char* state = "";
  uint64_t number = 0;  // number of the snapshot; 0 until it is assigned
  uint64_t steps = 0;   // optimizer steps applied to the weights; valid in state "done"
  uint32_t attempts = 0;
  uint64_t chunks = 0, chunks_copied = 0;
  uint32_t parts = 0, parts_written = 0;
  uint64_t bytes = 0;  // written so far
  std::string error;   // reason, in state "failed"
};

class SnapshotRun : public std::enable_shared_from_this<SnapshotRun> {
 public:
  using Answer = std::function<void(Result<proto::CutProgress>)>;
  // Asks a box, by name; an empty name means this box. The answer may come during the call.
  using Ask = std::function<void(const std::string& box, const proto::AskCut&, Answer)>;
  // Asks for the job's part map. The answer may come during the call.
  using AskPartMap = std::function<void(std::function<void(const Result<proto::PartMap>&)>)>;
  // Returns the wall-clock time for the manifest.
  using Clock = std::function<std::string()>;

  // `store` outlives the run. The run fails if it is not done at `deadline_ns`. `on_end` is called
  // once, when the run has ended.
  SnapshotRun(snapshot::SnapshotStore& store, Ask ask, AskPartMap ask_part_map, Clock clock,
              std::function<void()> on_end, std::string job, uint64_t deadline_ns);

  // Makes sure that no other box takes a snapshot of the job; the answer may come during the call.
  using Claim = std::function<void(std::function<void(const Status&)>)>;

  // Starts the run; must be called once. `own_name`: this box's name in the part map. `ranks`:
  // incarnations of the job's ranks. `claim` is null if there is no other box. `tenant`: that of
  // the ranks, for the manifest.
  void begin(const std::string& own_name, std::vector<uint64_t> ranks, const Claim& claim = nullptr,
             std::string tenant = {});
  void on_tick(uint64_t now_ns);

  bool is_over() const { return state_ == State::kDone || state_ == State::kFailed; }
  bool is_done() const { return state_ == State::kDone; }
  SnapshotView view() const;

 private:
  // kPlacing: finding the owners of the parts. kProbing: asking how far each part is. kCutting: the
  // parts take the cut and write it.
  enum class State { kStarting, kPlacing, kProbing, kCutting, kFinishing, kDone, kFailed };
  struct Part {
    std::string ask_name;  // name of the owner, for questions; empty if it is this box
    std::string box;
    proto::CutProgress progress;
    bool is_asked = false;      // a question is unanswered
    bool has_answered = false;  // it has answered since the state was entered
    std::string refusal;        // last error of a question to it
  };

  void reserve_number();
  void on_number(const Result<uint64_t>& number);
  void ask_places();
  void on_places(const Result<proto::PartMap>& map);
  void enter(State state);
  void ask_all();
  void ask(uint32_t part);
  void on_answer(uint32_t part, uint32_t attempt, State state,
                 const Result<proto::CutProgress>& answer);
  void on_probed();
  void on_progress();
  bool is_stalled(uint64_t now_ns);
  void start_next_attempt();
  void finish();
  void fail(const std::string& why);
  void end(State state);
  void release_cuts();

  snapshot::SnapshotStore& store_;
  Ask ask_;
  AskPartMap ask_part_map_;
  Clock clock_;
  std::function<void()> on_end_;
  std::string job_;
  uint64_t deadline_ns_;
  std::string own_name_;
  std::vector<uint64_t> ranks_;
  std::string tenant_;
  State state_ = State::kStarting;
  std::vector<Part> parts_;
  uint64_t number_ = 0;
  uint32_t attempt_ = 0;
  uint32_t missed_ = 0;           // cuts missed in a row
  uint64_t cutting_from_ns_ = 0;  // first tick after the cut was requested; 0 before it
  uint32_t round_ = 0;            // round of the cut; 0 if none has been requested
  uint64_t steps_ = 0;
  std::string error_;
};

}  // namespace pbox::control
