#!/usr/bin/env bash
# On host alpha of hosts.sh: Slurm of the two hosts, for one command.   slurm.sh FOLDER COMMAND...
set -euo pipefail
folder=$1; shift
mkdir -p "$folder"/{state,spool-alpha,spool-beta}
cat >"$folder/slurm.conf" <<END
ClusterName=test
SlurmctldHost=alpha
SlurmUser=root
SlurmdUser=root
AuthType=auth/none
CredType=cred/none
ProctrackType=proctrack/pgid
TaskPlugin=task/none
TmpFS=/mnt
StateSaveLocation=$folder/state
SlurmdSpoolDir=$folder/spool-%n
SlurmctldPidFile=$folder/slurmctld.pid
SlurmdPidFile=$folder/slurmd-%n.pid
SwitchType=switch/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
NodeName=alpha,beta CPUs=4 State=UNKNOWN
PartitionName=all Nodes=ALL Default=YES State=UP
SlurmdParameters=config_overrides
END
export SLURM_CONF=$folder/slurm.conf
slurmctld -i -D >"$folder/slurmctld.out" 2>&1 &
"$folder/agent" beta "SLURM_CONF=$SLURM_CONF slurmd -D -N beta >$folder/slurmd-beta.out 2>&1" &
slurmd -D -N alpha >"$folder/slurmd-alpha.out" 2>&1 &
for _ in $(seq 100); do
    [ "$(sinfo -h -t idle -o %D 2>/dev/null || true)" = 2 ] && break
    sleep 0.1
done
exec "$@"
