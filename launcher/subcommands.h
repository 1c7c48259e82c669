#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include <spdlog/logger.h>

#include "comm/cuda/plugin.h"
#include "engine/io/batch_job.h"
#include "engine/score/score_job.h"
#include "engine/session.h"
#include "launcher/rank_control.h"
#include "launcher/run_config.h"

namespace lockstep::launcher {

/// What a subcommand works with on rank 0, while the other ranks serve.
struct Job {
  const RunConfig& config;
  engine::Session& session;
  RankControl& control;
  spdlog::logger& log;
  int num_ranks = 1;
  std::size_t num_threads = 1;  // of this rank
  std::vector<int> processors;  // that the ranks of this machine may run on
  std::string device;           // as it describes itself
  std::string numerics;         // what of the device can change a bit of an answer
  // What all ranks together are given right now, where they are GPUs; else empty.
  std::function<double()> measure_bandwidth;   // bytes a second that their memory is read with
  std::function<double()> measure_peak_flops;  // bf16 operations a second
};

/// `lockstep batch`, `lockstep bench` and `lockstep score`. They return the exit code. generate.h and inspect.h have the others.
int run_batch_job(const Job& job);
int run_bench(const Job& job);
int run_score_job(const Job& job);

/// What `lockstep bench comm` works with, on every rank.
struct CommJob {
  const RunConfig& config;
  comm::Communicator& host;
  const comm::CudaPlugin* plugin = nullptr;  // null: the ranks are on CPUs, and `host` is measured
  comm::CudaRankOptions gpu;
};

/// `lockstep bench comm`, without a model. Collective; rank 0 prints. Returns the exit code.
int run_comm_bench(const CommJob& job);

/// What of the flags concerns the files of a job.
void set_job_options(const RunConfig& config, engine::JobOptions& options);
/// The settings that need the model.
void set_model_settings(const Job& job, engine::JobOptions& options);
engine::BatchOptions batch_options(const RunConfig& config);

/// Whatever of the subcommand's files can be checked before a model is opened. Changes nothing. @throws UsageError
void check_files(const RunConfig& config);

/// Writes all of `text` to standard output. @throws std::runtime_error if it can not be written.
void print(std::string_view text);

}  // namespace lockstep::launcher
