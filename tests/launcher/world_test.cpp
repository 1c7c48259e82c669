#include "launcher/world.h"

#include <map>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "launcher/mpirun.h"

namespace lockstep::launcher {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::IsSupersetOf;

RankEnvironment environment_of(const std::map<std::string, std::string>& variables) {
  return rank_environment([&](const char* name) {
    const auto found = variables.find(name);
    return found == variables.end() ? nullptr : found->second.c_str();
  });
}

TEST(RankEnvironment, KnowsWhoStartedTheRank) {
  EXPECT_EQ(environment_of({}).size, 0);
  const RankEnvironment open_mpi = environment_of({{"OMPI_COMM_WORLD_SIZE", "4"}, {"OMPI_COMM_WORLD_RANK", "2"}});
  EXPECT_EQ(open_mpi.size, 4);
  EXPECT_EQ(open_mpi.rank, 2);
  EXPECT_EQ(environment_of({{"PMI_SIZE", "3"}, {"PMI_RANK", "0"}}).size, 3);
  EXPECT_EQ(environment_of({{"SLURM_STEP_NUM_TASKS", "8"}, {"SLURM_PROCID", "7"}}).started_by, "srun");
}

TEST(RankEnvironment, ABatchScriptIsNoRank) { EXPECT_EQ(environment_of({{"SLURM_NTASKS", "8"}, {"SLURM_PROCID", "0"}}).size, 0); }

TEST(RankEnvironment, RefusesNonsense) {
  EXPECT_THROW(environment_of({{"PMI_SIZE", "two"}, {"PMI_RANK", "0"}}), UsageError);
  EXPECT_THROW(environment_of({{"PMI_SIZE", "2"}, {"PMI_RANK", "2"}}), UsageError);
}

TEST(Launch, StartsRanksOnlyWhereNeeded) {
  RunConfig config;
  config.tensor_parallel_size = 2;
  EXPECT_TRUE(must_launch(config, {}));
  EXPECT_FALSE(must_launch(config, {.rank = 0, .size = 2, .started_by = "mpirun"}));
  config.comm = "threads";
  EXPECT_FALSE(must_launch(config, {}));
  config = {};
  EXPECT_FALSE(must_launch(config, {}));
}

TEST(Launch, ARestartResumes) {
  EXPECT_THAT(resuming_arguments(std::vector<std::string>{"batch", "--overwrite", "-i", "i", "--restarts=2"}),
              ElementsAre("batch", "-i", "i", "--restarts=2", "--no-overwrite", "--resume"));
}

TEST(World, OneRankNeedsNoMpi) {
  World world({}, {});
  EXPECT_EQ(world.size(), 1);
  EXPECT_EQ(world.local_size(), 1);
  world.finalize();
}

TEST(World, RefusesAContradictingRankCount) {
  RunConfig config;
  config.tensor_parallel_size = 4;
  config.tensor_parallel_size_given = true;
  try {
    World(config, {.rank = 0, .size = 2, .started_by = "mpirun"});
    FAIL();
  } catch (const UsageError& error) {
    EXPECT_STREQ(error.what(), "--tensor-parallel-size is 4, but mpirun started 2 ranks");
  }
}

TEST(World, ChoosesTheCommunicator) {
  EXPECT_EQ(choose_communicator("auto", 1, 1), "self");
  EXPECT_EQ(choose_communicator("auto", 4, 4), "shm");
  EXPECT_EQ(choose_communicator("auto", 4, 2), "mpi");
  EXPECT_EQ(choose_communicator("mpi", 4, 4), "mpi");
  EXPECT_THROW(choose_communicator("shm", 4, 2), UsageError);
  EXPECT_THROW(choose_communicator("self", 2, 2), UsageError);
}

TEST(World, NamesTheMpiLibrary) { EXPECT_THAT(mpi_library_version(), HasSubstr("MPI")); }

TEST(Mpirun, AllowsRootOnlyForRoot) {
  const auto as_user = mpirun_command({.num_ranks = 3, .num_cores = 2, .root = false}, {"/bin/true"});
  EXPECT_THAT(as_user, testing::Not(testing::Contains("--allow-run-as-root")));
  EXPECT_THAT(mpirun_command({.num_ranks = 3, .num_cores = 2, .root = true}, {"/bin/true"}), testing::Contains("--allow-run-as-root"));
  EXPECT_THAT(as_user, IsSupersetOf({"mpirun", "-n", "3", "--oversubscribe", "/bin/true"}));
}

TEST(Mpirun, ItsAnnouncementsAreKeptApart) {
  const std::string rule(74, '-');
  ChatterFilter filter;
  EXPECT_THAT(filter.take("[rank 0] hello"), ElementsAre("[rank 0] hello"));
  EXPECT_THAT(filter.take("-----"), ElementsAre("-----"));
  EXPECT_THAT(filter.take(rule), IsEmpty());
  EXPECT_THAT(filter.take("mpirun noticed that process rank 2 with PID 0 on node vm exited on signal 9 (Killed)."), IsEmpty());
  EXPECT_THAT(filter.take(rule), IsEmpty());
  EXPECT_THAT(filter.take("after"), ElementsAre("after"));
  ASSERT_TRUE(filter.death());
  EXPECT_EQ(filter.death()->rank, 2);
  EXPECT_EQ(filter.death()->signal, 9);
}

TEST(Mpirun, ALineThatARankDrawsHidesNothing) {
  ChatterFilter filter;
  std::size_t shown = 0;
  filter.take(std::string(80, '-'));
  for (int i = 0; i < 200; ++i) shown += filter.take("text").size();
  EXPECT_EQ(shown, 201u);
}

}  // namespace
}  // namespace lockstep::launcher
