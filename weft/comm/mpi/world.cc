#include <array>
#include <cstring>
#include <exception>

#include <signal.h>

#include "weft/base/error.h"
#include "weft/comm/mpi/communicator.h"
#include "weft/comm/mpi/module.h"
#include "weft/comm/mpi/state.h"

namespace weft {

namespace {

// Starts MPI, and checks that it numbers the ranks as the launcher does.
void start_mpi(int rank, int size) {
  int before = 0;
  MPI_Initialized(&before);
  if (before != 0) throw RunError("MPI was already started in this process; a process is one rank, once");
  int provided = 0;
  check_mpi(MPI_Init_thread(nullptr, nullptr, MPI_THREAD_MULTIPLE, &provided), "MPI_Init_thread");
  MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
  if (provided != MPI_THREAD_MULTIPLE)
    throw RunError("this MPI was built without MPI_THREAD_MULTIPLE, which lanes need");
  int mpi_rank = 0, mpi_size = 0;
  check_mpi(MPI_Comm_rank(MPI_COMM_WORLD, &mpi_rank), "MPI_Comm_rank");
  check_mpi(MPI_Comm_size(MPI_COMM_WORLD, &mpi_size), "MPI_Comm_size");
  if (mpi_rank != rank || mpi_size != size)
    throw RunError(
        "the launcher calls this rank {} of {}, MPI calls it rank {} of {}: the launcher belongs to another MPI, or "
        "gives "
        "it no PMI (srun --mpi=pmix)",
        rank, size, mpi_rank, mpi_size);
}

MPI_Comm duplicate_world() {
  MPI_Comm comm = MPI_COMM_NULL;
  check_mpi(MPI_Comm_dup(MPI_COMM_WORLD, &comm), "MPI_Comm_dup");
  MPI_Comm_set_errhandler(comm, MPI_ERRORS_RETURN);
  return comm;
}

// Blocks SIGTERM for this thread and all it starts, so that the control thread can take it; not where the program has
// plans of its own for it.
class SigtermBlock {
 public:
  SigtermBlock() {
    struct sigaction action {};
    if (sigaction(SIGTERM, nullptr, &action) != 0 || action.sa_handler != SIG_DFL) return;
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGTERM);
    blocked_ = pthread_sigmask(SIG_BLOCK, &set, &before_) == 0;
  }
  ~SigtermBlock() {
    if (blocked_) pthread_sigmask(SIG_SETMASK, &before_, nullptr);
  }
  SigtermBlock(const SigtermBlock&) = delete;
  SigtermBlock& operator=(const SigtermBlock&) = delete;
  MpiControl::Sigterm use() const { return blocked_ ? MpiControl::Sigterm::watch : MpiControl::Sigterm::leave; }

 private:
  bool blocked_ = false;
  sigset_t before_{};
};

// What ranks tell each other before they make a group, so that they cannot hang in MPI's own call.
struct GroupNotice {
  std::uint64_t members_hash = 0;
  std::int64_t members = 0;
  std::array<char, 240> name{};
};

GroupNotice notice_of(std::span<const RankId> members, const std::string& name) {
  GroupNotice notice;
  notice.members_hash = 14695981039346656037u;  // FNV-1a
  for (const RankId member : members)
    notice.members_hash = (notice.members_hash ^ static_cast<std::uint64_t>(member.value)) * 1099511628211u;
  notice.members = static_cast<std::int64_t>(members.size());
  std::strncpy(notice.name.data(), name.c_str(), notice.name.size() - 1);
  return notice;
}

class MpiWorld : public World {
 public:
  MpiWorld(int rank, int size) : rank_(rank), size_(size), exceptions_(std::uncaught_exceptions()) {
    start_mpi(rank, size);
    setup_ = duplicate_world();
    state_ = std::make_shared<MpiState>(duplicate_world(), rank, size, sigterm_.use());
  }

  ~MpiWorld() override {
    if (std::uncaught_exceptions() > exceptions_) abort("an exception ended it");
    const bool ended = state_->control.ended().load();
    const bool all = state_->control.say_goodbye(ended ? goodbye_after_failure : state_->timeout.load());
    state_->finalized.store(true);
    const bool healthy = all && !state_->control.ended().load();
    state_.reset();  // ends the control thread, unless a group outlives its world
    // MPI_Finalize waits for everyone; a rank that has failed does not come.
    if (healthy) MPI_Finalize();
  }

  RankId rank() const override { return RankId(rank_); }
  int size() const override { return size_; }
  std::unique_ptr<Communicator> make_group(std::span<const RankId> members, const std::string& name,
                                           Device* device) override;
  void abort(const std::string& message) override { state_->control.fail(message); }
  void throw_if_ended() const override { state_->control.throw_if_ended(); }
  void set_timeout(double seconds) override {
    WEFT_CHECK(seconds > 0, "a timeout of {} seconds", seconds);
    state_->timeout.store(seconds);
  }
  double timeout() const override { return state_->timeout.load(); }
  void set_status(std::function<std::string()> status) override { state_->standing.set_status(std::move(status)); }
  std::vector<std::string> standings() override { return state_->control.ask_standings(MpiState::answer_seconds); }

 private:
  static constexpr double goodbye_after_failure = 2;  // seconds for the others to say what they have to say

  void agree_on_group(std::span<const RankId> members, const std::string& name);

  int rank_, size_;
  int exceptions_;
  SigtermBlock sigterm_;
  MPI_Comm setup_ = MPI_COMM_NULL;
  std::shared_ptr<MpiState> state_;
};

void MpiWorld::agree_on_group(std::span<const RankId> members, const std::string& name) {
  // All tell the first member, and it tells all when it has heard them.
  const GroupNotice mine = notice_of(members, name);
  std::vector<GroupNotice> theirs(members.size());
  MpiRequests requests;
  const auto bytes = static_cast<std::int64_t>(sizeof(GroupNotice));
  const auto tell = [&](RankId to) {
    requests.send(setup_, to.value, 0, reinterpret_cast<const std::byte*>(&mine), bytes);
  };
  const auto hear = [&](std::size_t from) {
    requests.receive(setup_, members[from].value, 0, reinterpret_cast<std::byte*>(&theirs[from]), bytes, 1);
  };
  const auto wait = [&] {
    state_->wait(
        requests, [&] { return fmt::format("make_group of '{}'", name); }, [](int peer) { return RankId(peer); });
  };
  const auto compare = [&](std::size_t with) {
    const GroupNotice& other = theirs[with];
    if (other.members_hash == mine.members_hash && other.members == mine.members && other.name == mine.name) return;
    const std::string why =
        fmt::format("rank {} makes group '{}' of {} ranks while rank {} makes group '{}' of {}, or of other ones",
                    members[with].value, other.name.data(), other.members, rank_, name, mine.members);
    state_->control.fail(why);
    throw RunError(why);
  };
  if (members[0].value == rank_) {
    for (std::size_t from = 1; from < members.size(); ++from) hear(from);
    wait();
    for (std::size_t from = 1; from < members.size(); ++from) compare(from);
    for (const RankId to : members.subspan(1)) tell(to);
    wait();
  } else {
    tell(members[0]);
    hear(0);
    wait();
    compare(0);
  }
}

std::unique_ptr<Communicator> MpiWorld::make_group(std::span<const RankId> members, const std::string& name,
                                                   Device* device) {
  if (device && device->asynchronous())
    throw UserError("MPI moves host memory only, and group '{}' is over {}: ranks on GPUs need NCCL", name,
                    device->name());
  const int index = index_in_group(members, rank(), size_, name);
  state_->control.throw_if_ended();
  agree_on_group(members, name);
  std::vector<int> ranks;
  for (const RankId member : members) ranks.push_back(member.value);
  MPI_Group everyone = MPI_GROUP_NULL, some = MPI_GROUP_NULL;
  MPI_Comm comm = MPI_COMM_NULL;
  check_mpi(MPI_Comm_group(MPI_COMM_WORLD, &everyone), "MPI_Comm_group");
  check_mpi(MPI_Group_incl(everyone, static_cast<int>(ranks.size()), ranks.data(), &some), "MPI_Group_incl");
  check_mpi(MPI_Comm_create_group(MPI_COMM_WORLD, some, 0, &comm), "MPI_Comm_create_group");
  MPI_Group_free(&some);
  MPI_Group_free(&everyone);
  MPI_Comm_set_errhandler(comm, MPI_ERRORS_RETURN);
  return std::make_unique<MpiCommunicator>(state_, comm, members, index, name);
}

World* open_world(int rank, int size) { return new MpiWorld(rank, size); }

std::string library_version() {
  char text[MPI_MAX_LIBRARY_VERSION_STRING + 1] = {};
  int length = 0;
  MPI_Get_library_version(text, &length);
  return text;  // Open MPI counts the end of the string into the length
}

}  // namespace

}  // namespace weft

extern "C" const weft::MpiModule* weft_mpi_module();
extern "C" const weft::MpiModule* weft_mpi_module() {
  static constexpr weft::MpiModule module{weft::mpi_module_version, weft::open_world, weft::library_version};
  return &module;
}
