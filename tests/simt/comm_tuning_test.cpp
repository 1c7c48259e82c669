#include <fstream>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "comm/cuda/measure.h"
#include "comm/cuda/rank_card.h"
#include "comm/cuda/tree_program.h"
#include "comm/cuda/tuning.h"
#include "comm/tree_sum.h"
#include "parallel/reduction_tree.h"
#include "tests/comm/conformance.h"
#include "tests/simt/comm_ranks.h"

/// What is decided on the host before a kernel runs: tables, trees, who may work with whom.
namespace lockstep::comm::cuda {
namespace {

using testing::AllOf;
using testing::HasSubstr;

TEST(TransportTable, IsReadAsItIsWritten) {
  const TransportTable table{
      {{0, Transport::kOneShot}, {4096, Transport::kTwoShot}, {1 << 20, Transport::kNcclGather}, {99999999, Transport::kNcclSlices}}};
  const std::string text = format_table(table, "4 GPUs\nmeasured on a Monday");
  EXPECT_EQ(text, "# 4 GPUs\n# measured on a Monday\n0 one_shot\n4096 two_shot\n1048576 nccl_gather\n99999999 nccl_slices\n");
  const TableFile file("");
  write_table(file.path(), table, "4 GPUs");
  EXPECT_EQ(read_table(file.path()), table);
  EXPECT_EQ(parse_table("\r\n  0\tone_shot # small\r\n\n#\n5 two_shot", "t"),
            (TransportTable{{{0, Transport::kOneShot}, {5, Transport::kTwoShot}}}));
}

TEST(TransportTable, ASizeBelongsToTheLastEntryThatBeginsBelowIt) {
  const TransportTable table = parse_table("0 one_shot\n100 two_shot\n200 nccl_slices\n", "t");
  EXPECT_EQ(table.choose(0), Transport::kOneShot);
  EXPECT_EQ(table.choose(99), Transport::kOneShot);
  EXPECT_EQ(table.choose(100), Transport::kTwoShot);
  EXPECT_EQ(table.choose(1'000'000'000'000), Transport::kNcclSlices);
}

std::string parse_error(const std::string& text) {
  try {
    parse_table(text, "table.txt");
  } catch (const std::runtime_error& error) {
    return error.what();
  }
  return {};
}

TEST(TransportTable, FaultsAreNamedWithTheirLine) {
  EXPECT_EQ(parse_error(""), "table.txt:0: there is no entry; expected lines \"SIZE_BYTES TRANSPORT\"");
  EXPECT_EQ(parse_error("# nothing\n"), "table.txt:1: there is no entry; expected lines \"SIZE_BYTES TRANSPORT\"");
  EXPECT_EQ(parse_error("5 one_shot"), "table.txt:1: the first size must be 0, not 5");
  EXPECT_EQ(parse_error("0 one_shot\n0 two_shot"), "table.txt:2: sizes must ascend: 0 comes after 0");
  EXPECT_EQ(parse_error("0 one_shot\n\n7"), "table.txt:3: expected \"SIZE_BYTES TRANSPORT\", found 1 words");
  EXPECT_EQ(parse_error("-1 one_shot"), "table.txt:1: \"-1\" is not a size in bytes");
  EXPECT_EQ(parse_error("4k one_shot"), "table.txt:1: \"4k\" is not a size in bytes");
  EXPECT_EQ(parse_error("99999999999999999999 one_shot"), "table.txt:1: \"99999999999999999999\" is not a size in bytes");
  EXPECT_THAT(parse_error("0 three_shot"),
              HasSubstr("there is no transport \"three_shot\"; there are one_shot, two_shot, nccl_gather, nccl_slices"));
  EXPECT_THROW(read_table("/no/such/table"), std::runtime_error);
  EXPECT_THROW(write_table("/no/such/folder/table", built_in_table(true), ""), std::runtime_error);
}

TEST(TransportTable, OfMeasurementsIsThatOfTheFastestWhereItIsWorthwhile) {
  const TransportTimes times{.sizes = {10, 20, 30, 40, 50, 60},
                             .transports = {"one_shot", "two_shot", "nccl_slices", "ncclAllReduce"},
                             .seconds = {{1, 1, 2, 5, 0, 0}, {2, 0.99, 1, 2, 4, 0}, {9, 9, 9, 1.99, 1, 1}, {0.1, 0.1, 0.1, 0.1, 0.1, 0.1}},
                             .table = {}};
  // 0.99 and 1.99 are no gain; ncclAllReduce adds in an order of its own.
  EXPECT_EQ(fastest_table(times, 3),
            (TransportTable{{{0, Transport::kOneShot}, {90, Transport::kTwoShot}, {150, Transport::kNcclSlices}}}));
}

/// Runs a program on the host, as a kernel does.
float run(const TreeProgram& program, const std::vector<std::vector<float>>& roots) {
  std::vector<float> stack;
  std::size_t deepest = 0;
  for (std::uint32_t i = 0; i < program.num_roots; ++i) {
    const TreeProgram::Step& step = program.steps[i];
    stack.push_back(roots.at(step.rank).at(step.root));
    deepest = std::max(deepest, stack.size());
    for (int merge = 0; merge < step.merges; ++merge) {
      const float top = stack.back();
      stack.pop_back();
      stack.back() = stack.back() + top;
    }
  }
  EXPECT_EQ(stack.size(), 1u);
  EXPECT_LE(deepest, program.depth);
  EXPECT_LE(program.depth, TreeProgram::max_depth);
  return stack.at(0);
}

TEST(TreeProgram, GivesTheBitsOfTheTreeForAnyLeavesAndRanks) {
  for (const std::size_t leaves : {1, 2, 3, 9, 16, 31, 40, 71, 256}) {
    for (std::size_t ranks = 1; ranks <= 9; ++ranks) {
      std::vector<parallel::Range> shares;
      for (std::size_t rank = 0; rank < ranks; ++rank) shares.push_back(parallel::even_share(leaves, rank, ranks));
      const parallel::ReductionTree reduction(leaves);
      const TreeSum tree = reduction.tree_sum(shares);
      std::vector<std::vector<float>> roots(ranks);
      std::vector<const float*> sources;
      for (std::size_t rank = 0; rank < ranks; ++rank) {
        for (std::size_t root = 0; root < tree.roots_per_rank[rank]; ++root)
          roots[rank].push_back(conformance::noise(rank * 97 + root, leaves));
        for (const float& value : roots[rank]) sources.push_back(&value);
      }
      float expected = 0;
      TreeScratch scratch;
      tree_sum(tree, sources, &expected, 1, scratch);
      EXPECT_EQ(std::bit_cast<std::uint32_t>(run(make_tree_program(tree), roots)), std::bit_cast<std::uint32_t>(expected))
          << leaves << " leaves on " << ranks << " ranks";
    }
  }
}

TEST(TreeProgram, AnyShapeOfTreeNeedsAShortStack) {
  for (const bool ascending : {false, true}) {  // chains, which from the wrong end would pile up all roots
    TreeSum chain{{200, 56}, {}};
    for (std::uint32_t i = 0; i + 1 < 256; ++i) {
      const std::uint32_t at = ascending ? i + 1 : 255 - i;
      chain.merges.push_back(ascending ? TreeSum::Merge{0, at} : TreeSum::Merge{at - 1, at});
    }
    EXPECT_EQ(make_tree_program(chain).depth, 2u);
  }
}

TEST(TreeProgram, TreesThatDifferHaveOtherDigests) {
  const TreeSum tree = conformance::SharedTree(9, 3).sum;
  TreeSum other = tree;
  std::swap(other.merges.back().into, other.merges.back().from);
  EXPECT_NE(make_tree_program(tree).digest, make_tree_program(conformance::SharedTree(10, 3).sum).digest);
  EXPECT_NE(make_tree_program(TreeSum{{2, 1}, {{0, 1}, {0, 2}}}).digest, make_tree_program(TreeSum{{1, 2}, {{0, 1}, {0, 2}}}).digest);
  EXPECT_THROW(make_tree_program(other), std::invalid_argument);  // its sum ends elsewhere
}

TEST(TreeProgram, WhatCannotBeAddedIsRefused) {
  EXPECT_THROW(make_tree_program(TreeSum{{3}, {{0, 1}, {0, 1}}}), std::invalid_argument);
  TreeSum large{{257}, {}};
  for (std::uint32_t i = 1; i < 257; ++i) large.merges.push_back({0, i});
  EXPECT_THROW(make_tree_program(large), std::invalid_argument);
}

RankCard card(int device, int capability = 90) {
  RankCard made;
  made.pci[1] = device + 1;
  made.capability = capability;
  std::snprintf(made.gpu_name.data(), made.gpu_name.size(), "GPU model %d", capability);
  return made;
}

TEST(RankCards, GpusOfDifferentArchitecturesAreRefusedByName) {
  EXPECT_EQ(card_error({card(0), card(1), card(2)}, false), "");
  EXPECT_THAT(card_error({card(0), card(1), card(2, 80)}, false),
              AllOf(HasSubstr("GPUs of different architectures give different bits: rank 0 has GPU model 90 (PCI 0000:01:00"),
                    HasSubstr("rank 2 has GPU model 80 (PCI 0000:03:00, compute capability 8.0)")));
}

TEST(RankCards, GpusOfOtherMachinesAtTheSamePlaceAreOthers) {
  RankCard here = card(0), there = card(0);
  there.gpu_uuid[3] = 7;
  EXPECT_EQ(card_error({here, there}, false), "");
  there.gpu_uuid[3] = 0;
  EXPECT_THAT(card_error({here, there}, false), HasSubstr("two ranks have the same GPU: rank 0 has"));
  EXPECT_EQ(card_error({here, there}, true), "");
}

}  // namespace
}  // namespace lockstep::comm::cuda
