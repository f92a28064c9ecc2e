#include "weft/base/error.h"
#include "weft/comm/message_world.h"
#include "weft/comm/mpi/control.h"
#include "weft/comm/mpi/messages.h"
#include "weft/comm/mpi/module.h"

namespace weft {

namespace {

// Starts MPI and checks that it numbers the ranks as the launcher does.
void start_mpi(int rank, int size) {
  int before = 0;
  MPI_Initialized(&before);
  if (before != 0) throw RunError("MPI was already started in this process, which can be one rank only once");
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
        "does not offer PMI (srun --mpi=pmix)",
        rank, size, mpi_rank, mpi_size);
}

MPI_Comm duplicate_world() {
  MPI_Comm comm = MPI_COMM_NULL;
  check_mpi(MPI_Comm_dup(MPI_COMM_WORLD, &comm), "MPI_Comm_dup");
  MPI_Comm_set_errhandler(comm, MPI_ERRORS_RETURN);
  return comm;
}

class MpiWorld : public MessageWorld {
 public:
  MpiWorld(int rank, int size, Sigterm sigterm) : MessageWorld(rank, size, "MPI"), sigterm_(sigterm) {
    start_mpi(rank, size);
    const MPI_Comm setup = duplicate_world();
    control_ = std::make_shared<MpiControl>(duplicate_world(), rank, size, sigterm_.control());
    use(control_, std::make_unique<MpiMessages>(control_, setup));
  }

  ~MpiWorld() override {
    const bool healthy = leave();
    control_->set_finalized();
    use(nullptr, nullptr);
    control_.reset();  // ends the control thread, unless a group outlives its world
    // MPI_Finalize waits for all ranks; one that has failed never calls it.
    if (healthy) MPI_Finalize();
  }

 private:
  std::unique_ptr<Messages> open_group(std::span<const RankId> members, std::uint64_t) override {
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
    return std::make_unique<MpiMessages>(control_, comm);
  }

  SigtermBlock sigterm_;
  std::shared_ptr<MpiControl> control_;
};

World* open_world(int rank, int size, Sigterm sigterm) { return new MpiWorld(rank, size, sigterm); }

std::string library_version() {
  char text[MPI_MAX_LIBRARY_VERSION_STRING + 1] = {};
  int length = 0;
  MPI_Get_library_version(text, &length);
  return text;  // Open MPI's length includes the terminating zero
}

}  // namespace

}  // namespace weft

extern "C" const weft::MpiModule* weft_mpi_module() {
  static constexpr weft::MpiModule module{weft::mpi_module_version, weft::open_world, weft::library_version};
  return &module;
}
