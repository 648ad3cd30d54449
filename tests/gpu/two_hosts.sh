#!/usr/bin/env bash
# tests/gpu/many_nodes.py on two hosts with a GPU each: network namespaces of one machine with two GPUs (tests/nodes/hosts.sh). Needs root.
#   two_hosts.sh mpi|nccl|cuda-mpi|torchrun [ARGUMENTS of many_nodes.py]
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
engine=$1; shift
folder=$(mktemp -d); trap 'rm -rf "$folder"' EXIT

# A rank sees the GPU of its host only.
cat >"$folder/rank" <<END
#!/usr/bin/env bash
case \$(hostname) in alpha) export CUDA_VISIBLE_DEVICES=0 ;; *) export CUDA_VISIBLE_DEVICES=1 ;; esac
cd "$root" && exec "\$@"
END
chmod +x "$folder/rank"
# NCCL: over the cable, not over NVLink or shared memory, which two machines would not have.
export NCCL_SOCKET_IFNAME=to- NCCL_IB_DISABLE=1 HOSTS_USER=
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
program="tests/gpu/many_nodes.py $*"
if [ "$engine" = torchrun ]; then
    each="$folder/rank torchrun --nnodes 2 --nproc-per-node 1 --rdzv-backend c10d --rdzv-endpoint alpha:29500 $program"
    echo "$folder/agent beta $each & $each && wait \$!" >"$folder/both"
    exec bash "$root/tests/nodes/hosts.sh" "$folder" bash "$folder/both"
fi
export PKNUMBA_ENGINE=$engine
agent=(--mca plm_rsh_agent "$folder/agent")
mpirun --version | grep -q "Open MPI) 4" || agent=(--prtemca plm_ssh_agent "$folder/agent")
passed=(); for name in $(compgen -e | grep -E '^(PKNUMBA_|PATH$|PYTHON|NCCL_|OMP_|OMPI_MCA_|UCX_|LD_LIBRARY_PATH$|OPAL_PREFIX$)'); do passed+=(-x "$name"); done
net=(--mca btl_tcp_if_include 10.211.7.0/24 --mca oob_tcp_if_include 10.211.7.0/24)
bash "$root/tests/nodes/hosts.sh" "$folder" "$(command -v mpirun)" "${agent[@]}" "${net[@]}" --mca pml "${OMPI_MCA_pml:-ob1}" \
    --mca btl "${MPI_BTL:-self,tcp}" --host alpha:1,beta:1 -n 2 --oversubscribe --bind-to none "${passed[@]}" "$folder/rank" python3 $program
